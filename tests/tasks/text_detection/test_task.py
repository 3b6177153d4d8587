"""The task text_detection: EAST's losses by hand, and words found on maps that say where they are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor

from src.config import ConfigError
from src.tasks.torch.text_detection import TextDetection
from tests.support import ROOT

HEIGHT, WIDTH, MOST = 64, 96, 4
LEVEL = [[8, 8], [48, 8], [48, 28], [8, 28]]
TURNED = [[20, 10], [60, 40], [54, 48], [14, 18]]
FAR = [[52, 36], [92, 36], [92, 56], [52, 56]]
CERTAIN = 20.0
OPTIONS = yaml.safe_load((ROOT / "conf/task/text_detection.yaml").read_text())


def task(**options: Any) -> TextDetection:
    return TextDetection(classes=1, shape=(HEIGHT, WIDTH, 3), options={**OPTIONS, **options})


def words(*samples: list[Any], ignored: list[int] | None = None) -> tuple[np.ndarray, ...]:
    """Targets as a dataset has them."""
    corners = np.zeros((len(samples), MOST, 4, 2), np.float32)
    flags = np.zeros((len(samples), MOST), np.uint8)
    for place, sample in enumerate(samples):
        corners[place, : len(sample)] = np.array(sample).reshape(-1, 4, 2)
        flags[place, : len(ignored or [])] = ignored or []
    return corners, np.array([len(sample) for sample in samples]), flags


def tensors(own: TextDetection, targets: tuple[np.ndarray, ...]) -> tuple[Tensor, ...]:
    arrays = (*targets, *own.derive(targets))
    return tuple(torch.from_numpy(array) for array in arrays)


def perfect(targets: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Outputs that say what is true."""
    *_, text, _, geometry = targets
    return torch.where(text[:, None] > 0, CERTAIN, -CERTAIN), geometry


def test_maps_are_a_quarter_of_the_image() -> None:
    targets = tensors(task(), words([LEVEL], [LEVEL, FAR]))
    assert [tuple(each.shape) for each in targets[3:]] == [(2, 16, 24), (2, 16, 24), (2, 5, 16, 24)]


@pytest.mark.parametrize("score_loss", ["balanced", "dice"])
def test_what_is_true_costs_nothing(score_loss: str) -> None:
    own = task(score_loss=score_loss)
    targets = tensors(own, words([LEVEL, TURNED], []))
    assert float(own.loss(perfect(targets), targets)) == pytest.approx(0, abs=1e-4)


def test_text_and_the_rest_weigh_the_same() -> None:
    own = task(angle_weight=0)
    targets = tensors(own, words([LEVEL]))
    logits, geometry = perfect(targets)
    # All pixels have probability 1/4: -ln(1/4) for text, -ln(3/4) for the rest, each a mean.
    flat = torch.full_like(logits, math.log(1 / 3))
    assert float(own.loss((flat, geometry), targets)) == pytest.approx((math.log(4) + math.log(4 / 3)) / 2)


def test_dice_by_hand() -> None:
    own = task(score_loss="dice")
    targets = tensors(own, words([LEVEL]))
    _, geometry = perfect(targets)
    text = int(targets[3].sum())
    # All 384 pixels are half text.
    flat = torch.zeros(1, 1, 16, 24)
    expected = 1 - 2 * (text / 2 + 1) / (384 / 2 + text + 2)
    assert float(own.loss((flat, geometry), targets)) == pytest.approx(expected)


def test_a_box_half_as_high_costs_the_logarithm_of_its_overlap() -> None:
    own = task()
    targets = tensors(own, words([LEVEL]))
    logits, geometry = perfect(targets)
    half = geometry.clone()
    # The word is 40 by 20; its rows of text are 10 pixels from its top and from its bottom.
    half[:, [0, 2]] /= 2
    assert float(own.loss((logits, half), targets)) == pytest.approx(math.log(801 / 401), rel=1e-4)


def test_an_angle_costs_ten_times_what_its_cosine_lacks() -> None:
    own = task()
    targets = tensors(own, words([LEVEL]))
    logits, geometry = perfect(targets)
    turned = geometry.clone()
    turned[:, 4] += 0.3
    expected = 10 * (1 - math.cos(0.3))
    assert float(own.loss((logits, turned), targets)) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("score_loss", ["balanced", "dice"])
def test_losses_add_up_however_samples_are_divided(score_loss: str) -> None:
    own = task(score_loss=score_loss)
    targets = tensors(own, words([LEVEL], [TURNED, FAR], [], [FAR]))
    torch.manual_seed(0)
    outputs = torch.randn(4, 1, 16, 24), torch.rand(4, 5, 16, 24) * 20
    whole = float(own.loss(outputs, targets))
    parts = [slice(0, 1), slice(1, 4)]
    losses = [
        own.loss(*(tuple(each[part] for each in every) for every in (outputs, targets))) for part in parts
    ]
    assert float(sum(losses)) == pytest.approx(whole, rel=1e-6)


def test_ignored_words_change_no_loss() -> None:
    own = task()
    targets = tensors(own, words([LEVEL, FAR], ignored=[0, 1]))
    logits, geometry = perfect(targets)
    everywhere = logits.clone()
    everywhere[targets[4][:, None] > 0] = CERTAIN
    assert float(own.loss((everywhere, geometry), targets)) == float(own.loss((logits, geometry), targets))


def test_words_are_found_where_the_maps_say() -> None:
    own = task(shrink=0.2)
    targets = tensors(own, words([LEVEL, FAR], [TURNED], []))
    outputs = perfect(targets)
    assert own.score(outputs, targets).tolist() == [3, 3, 3]
    found, _ = own.boxes(*(each[1] for each in outputs))
    assert found == pytest.approx(np.array([TURNED], float), abs=0.01)


def test_counts_add_up_however_samples_are_divided() -> None:
    own = task(least_score=0.6, merge_iou=0.1)
    targets = tensors(own, words([LEVEL], [TURNED, FAR], [], [FAR]))
    torch.manual_seed(0)
    logits, geometry = perfect(targets)
    # Some of what is true, and some of what isn't.
    outputs = logits + 10 * torch.randn(logits.shape), geometry + torch.rand(geometry.shape)
    whole = own.score(outputs, targets)
    parts = [slice(0, 1), slice(1, 4)]
    sums = [
        own.score(*(tuple(each[part] for each in every) for every in (outputs, targets))) for part in parts
    ]
    assert (sums[0] + sums[1]).tolist() == whole.tolist()
    assert whole.min() > 0 and whole[1] != whole[2]


def test_found_words_that_are_ignored_count_nowhere() -> None:
    own = task()
    seen = tensors(own, words([LEVEL, FAR]))
    targets = tensors(own, words([LEVEL, FAR], ignored=[0, 1]))
    assert own.score(perfect(seen), targets).tolist() == [1, 1, 1]


def test_a_model_that_sees_text_everywhere_is_scored_all_the_same() -> None:
    own = task()
    targets = tensors(own, words([LEVEL]))
    torch.manual_seed(0)
    outputs = torch.full((1, 1, 16, 24), 5.0), torch.rand(1, 5, 16, 24) * 20
    matched, found, total = own.score(outputs, targets).tolist()
    assert total == 1 and matched <= 1 <= found <= 96


def test_a_model_that_has_diverged_finds_nothing() -> None:
    own = task()
    targets = tensors(own, words([LEVEL]))
    outputs = torch.full((1, 1, 16, 24), math.nan), torch.full((1, 5, 16, 24), math.nan)
    assert own.score(outputs, targets).tolist() == [0, 0, 1]


def test_metrics_on_numbers_worked_by_hand() -> None:
    found = task().metrics({"matched": 6, "found": 8, "words": 12}, 5)
    assert found == {"f_measure": 0.6, "precision": 0.75, "recall": 0.5}
    nothing = task().metrics({"matched": 0, "found": 0, "words": 12}, 5)
    assert nothing == {"f_measure": 0, "precision": 0, "recall": 0}


def test_a_model_of_another_task_is_refused() -> None:
    own = task()
    targets = tensors(own, words([LEVEL]))
    with pytest.raises(ConfigError, match="a score and a geometry"):
        own.loss((torch.zeros(1, 1, 16, 24),), targets)


def test_a_picture_has_a_box_around_a_found_word() -> None:
    own = task()
    outputs = perfect(tensors(own, words([LEVEL])))
    image = np.zeros((HEIGHT * 2, WIDTH * 2, 3), np.uint8)
    picture = own.draw(image, outputs, ("text",))
    assert picture.shape == image.shape
    drawn = picture.any(axis=2)
    # The picture is twice as large as the image.
    assert drawn[16, 16:96].all() and drawn[56, 16:96].all() and drawn[16:56, 16].all()
    assert not drawn[20:52, 20:92].any() and not drawn[64:].any()
