"""A torch rank's feed: the same pixels however a batch is split, and waits that are waits."""

from __future__ import annotations

import dataclasses
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from src.data.arrays import Arrays, Split
from src.data.batches import training_order, training_samples
from src.measure.recorder import Recorder
from src.runtime.common.context import RankContext
from src.runtime.torch import setup
from src.runtime.torch.feed import Feed
from src.runtime.torch.tensors import normalise
from tests.support import config

CPU = torch.device("cpu")
SAMPLES, BATCH = 100, 16
WORDS = (f"batch={BATCH}", "dataset.augment=crop_flip", "dataset.shuffle_window=32")


def dataset(channels: int = 3) -> Arrays:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (SAMPLES, 16, 12, channels), dtype=np.uint8)
    split = Split((images,), (generator.integers(0, 10, SAMPLES),))
    # Normalised with these, pixels stay what they are.
    mean, std = (0.0,) * channels, (1 / 255,) * channels
    return Arrays(split, split, (16, 12, channels), tuple("0123456789"), mean, std, "generated")


def feed(
    folder: Path,
    *words: str,
    rank: int = 0,
    world: int = 1,
    cores: int = 1,
    device: torch.device = CPU,
    arrays: Arrays | None = None,
) -> Feed:
    chosen = config(*WORDS, *words)
    context = RankContext(chosen, rank, world, arrays or dataset(), folder, tuple(range(cores)))
    recorder = Recorder(chosen, rank, folder / str(rank), started=0.0, probes=False)
    return Feed(context, recorder, device, setup.make_task(context), parts=chosen.microbatches)


def epoch(fed: Feed) -> list[tuple[np.ndarray, np.ndarray]]:
    """Images [piece, height, width, channels] and labels of the present epoch's pieces."""
    pieces = []
    for batch in fed:
        assert batch.inputs is not None
        assert batch.targets is not None
        pieces.append((batch.inputs[0].permute(0, 2, 3, 1).numpy(), batch.targets[0].numpy()))
    fed.end_epoch()
    return pieces


def test_ranks_and_micro_batches_have_the_pixels_of_one_device(tmp_path: Path) -> None:
    chosen, arrays = config(*WORDS), dataset()
    alone = feed(tmp_path)
    pair = [feed(tmp_path, "strategy=ddp", "workers=2", "microbatches=2", rank=r, world=2) for r in (0, 1)]
    for number in range(2):
        batches = epoch(alone)
        order = training_order(chosen, SAMPLES, number)
        expected = training_samples(arrays, chosen, order[: SAMPLES // BATCH * BATCH], number)
        np.testing.assert_array_equal(np.concatenate([images for images, _ in batches]), expected.inputs[0])
        np.testing.assert_array_equal(np.concatenate([labels for _, labels in batches]), expected.targets[0])
        first, second = (epoch(each) for each in pair)
        for step, (images, labels) in enumerate(batches):
            pieces = [*first[2 * step : 2 * step + 2], *second[2 * step : 2 * step + 2]]
            np.testing.assert_array_equal(np.concatenate([piece for piece, _ in pieces]), images)
            np.testing.assert_array_equal(np.concatenate([piece for _, piece in pieces]), labels)


@pytest.mark.parametrize("cores", [2, 3])
def test_more_cores_read_the_same(tmp_path: Path, cores: int) -> None:
    for (images, labels), (other, others) in zip(
        epoch(feed(tmp_path)), epoch(feed(tmp_path, cores=cores)), strict=True
    ):
        np.testing.assert_array_equal(images, other)
        np.testing.assert_array_equal(labels, others)


class Counted(np.ndarray):
    """Images that count how often some of them are read."""

    reads = 0

    def __getitem__(self, rows: Any) -> Any:
        type(self).reads += 1
        return np.asarray(self)[rows]


def test_a_batch_for_a_gpu_is_read_ahead_and_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = dataset()
    counted = Split(tuple(array.view(Counted) for array in plain.train.inputs), plain.train.targets)
    arrays = dataclasses.replace(plain, train=counted)
    # The meta device works through the path of a GPU; here its tensors keep their data.
    ahead = feed(tmp_path, cores=4, device=torch.device("meta"), arrays=arrays)
    monkeypatch.setattr("src.runtime.torch.tensors.to_device", lambda array, _: torch.as_tensor(array))
    before = Counted.reads
    batches = iter(ahead)
    next(batches)
    deadline = time.monotonic() + 10
    while Counted.reads < before + 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert Counted.reads == before + 3
    batches.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("feed")]
    for (images, _), (other, _) in zip(epoch(feed(tmp_path)), epoch(ahead), strict=True):
        np.testing.assert_array_equal(images, other)


def test_threads_end_with_the_feed_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    batches = iter(feed(tmp_path, cores=2))
    next(batches)
    assert [thread for thread in threading.enumerate() if thread.name.startswith("feed")]
    del batches
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("feed")]


@pytest.mark.parametrize("cores", [1, 2])
def test_an_error_of_a_read_reaches_the_training(tmp_path: Path, cores: int) -> None:
    broken = feed(tmp_path, cores=cores)
    images = broken.context.arrays.train.inputs[0][:50]
    split = Split((images,), broken.context.arrays.train.targets)
    lacking = dataclasses.replace(broken.context.arrays, train=split)
    broken.context = dataclasses.replace(broken.context, arrays=lacking)
    broken.steps = SAMPLES // BATCH
    with pytest.raises(IndexError):
        epoch(broken)


class Slow:
    """An array whose rows take a while to read."""

    def __init__(self, array: np.ndarray, seconds: float) -> None:
        self.array, self.seconds = array, seconds
        self.shape, self.dtype = array.shape, array.dtype

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, rows: Any) -> np.ndarray:
        time.sleep(self.seconds)
        return self.array[rows]


def test_the_time_in_which_a_batch_is_read_is_waited_for(tmp_path: Path) -> None:
    slow = feed(tmp_path)
    split = slow.context.arrays.train
    arrays: Any = (Slow(split.inputs[0], 0.02),)
    slow.context = dataclasses.replace(
        slow.context, arrays=dataclasses.replace(slow.context.arrays, train=Split(arrays, split.targets))
    )
    batches = len(epoch(slow))
    waited = slow.recorder.input_seconds
    assert waited is not None
    assert waited >= 0.02 * batches
    assert feed(tmp_path).recorder.input_seconds == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("height", "width", "channels"), [(28, 28, 1), (500, 301, 3), (3, 5, 4)])
def test_normalised_is_less_the_mean_over_the_deviation(
    dtype: torch.dtype, height: int, width: int, channels: int
) -> None:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (3, height, width, channels), dtype=np.uint8)
    mean, std = generator.random(channels), generator.random(channels) + 0.1
    arrays = dataclasses.replace(dataset(channels), mean=tuple(mean), std=tuple(std))
    context = RankContext(config(), 0, 1, arrays, Path(), (0,))
    try:
        torch.set_default_dtype(dtype)
        result = normalise(context, torch.from_numpy(images))
        empty = normalise(context, torch.from_numpy(images[:0]))
    finally:
        torch.set_default_dtype(torch.float32)
    assert result.dtype == dtype
    assert result.is_contiguous(memory_format=torch.channels_last) or channels == 1
    expected = ((images / 255 - mean) / std).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(result.numpy(), expected, atol=1e-5 if dtype == torch.float32 else 1e-12)
    assert empty.shape == (0, channels, height, width)


@pytest.mark.parametrize("kind", [np.uint16, np.uint32])
@pytest.mark.parametrize("as_if", ["cpu", "meta"])
def test_tokens_are_kept_in_few_bits_and_fed_as_int64(tmp_path: Path, kind: type, as_if: str) -> None:
    """On a CPU, and by the way to another device, of which this one keeps no values."""
    largest = np.iinfo(kind).max
    tokens = np.random.default_rng(0).integers(0, largest, (SAMPLES, 9), kind, endpoint=True)
    split = Split((tokens[:, :-1],), (tokens[:, 1:],))
    arrays = Arrays(split, split, (8,), ("a", "b"), (), (), "generated", int(largest) + 1)
    assert arrays.tokens == 8
    words = ("dataset.augment=none", "task=next_token", "model=huggingface", "model.architecture=Any")
    fed = feed(tmp_path, *words, device=torch.device(as_if), cores=2, arrays=arrays)
    order = training_order(fed.context.config, SAMPLES, 0)
    for step, batch in enumerate(fed):
        assert batch.inputs is not None and batch.targets is not None
        assert batch.inputs[0].dtype == batch.targets[0].dtype == torch.int64
        assert batch.divisor == 8 * BATCH
        if as_if == "cpu":
            rows = tokens[order[step * BATCH : (step + 1) * BATCH]].astype(np.int64)
            np.testing.assert_array_equal(batch.inputs[0].numpy(), rows[:, :-1])
            np.testing.assert_array_equal(batch.targets[0].numpy(), rows[:, 1:])
