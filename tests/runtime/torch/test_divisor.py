"""The targets that a loss is a mean over are those that the model is trained on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from src.data.arrays import Arrays, Split
from src.data.batches import training_samples
from src.measure.recorder import Recorder
from src.runtime.common.context import RankContext
from src.runtime.torch.feed import Feed
from src.tasks.torch.text_segmentation import TextSegmentation
from tests.support import config

SAMPLES, BATCH = 24, 8
WORDS = ("dataset=icdar2015", "dataset.source=generated", "model=east", f"batch={BATCH}")


class WordMean(TextSegmentation):
    """A task whose loss is a mean over words."""

    divisor = "targets"

    def count(self, targets: tuple[Tensor, ...]) -> Tensor:
        return targets[1].sum()


def scenes() -> Arrays:
    """Images with a word in each corner, which enlargement moves out."""
    images = np.zeros((SAMPLES, 32, 48, 3), dtype=np.uint8)
    word = np.array([[0, 0], [6, 0], [6, 5], [0, 5]])
    corners = np.float32([word + place for place in ([0, 0], [42, 0], [42, 27], [0, 27])])
    targets = (np.stack([corners] * SAMPLES), np.full(SAMPLES, 4), np.zeros((SAMPLES, 4), dtype=np.uint8))
    split = Split((images,), targets)
    return Arrays(split, split, (32, 48, 3), ("text",), (0.5,) * 3, (0.2,) * 3, "generated")


def divisors(folder: Path, *words: str, rank: int = 0) -> list[float]:
    """Of the batches of the second epoch, which a rank of two feeds."""
    chosen = config(*WORDS, *words, "strategy=ddp", "workers=2")
    context = RankContext(chosen, rank, 2, scenes(), folder, (0,))
    recorder = Recorder(chosen, rank, folder / str(rank), started=0.0, probes=False)
    task = WordMean(classes=1, shape=(32, 48, 3), options={})
    fed = Feed(context, recorder, torch.device("cpu"), task, parts=1)
    fed.start_at(1, 0)
    return [batch.divisor for batch in fed]


def test_stored_words_are_counted_without_augmentation(tmp_path: Path) -> None:
    assert divisors(tmp_path) == [4 * BATCH] * 3


def test_moved_words_are_counted_and_the_same_by_all_ranks(tmp_path: Path) -> None:
    counted = divisors(tmp_path, "dataset.augment=affine")
    assert divisors(tmp_path, "dataset.augment=affine", rank=1) == counted
    chosen = config(*WORDS, "dataset.augment=affine")
    moved = training_samples(scenes(), chosen, np.arange(SAMPLES), 1, inputs=False)
    # The batches of an epoch have all samples here.
    assert sum(counted) == moved.targets[1].sum() < 4 * SAMPLES
