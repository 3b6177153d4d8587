"""The task text_segmentation: which pixels are text, and a loss and counts that add up."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from matplotlib.path import Path as Polygon
from torch import Tensor

from src.models.torch.text_fcn import build
from src.tasks.torch.text_segmentation import TextSegmentation, fill

SHAPE = (32, 48, 3)
# Of a map of 8x12, a quarter of the image's resolution.
MAP = (8, 12)
BOX = [[8, 4], [24, 4], [24, 12], [8, 12]]


def task() -> TextSegmentation:
    return TextSegmentation(classes=1, shape=SHAPE, options={})


def targets(*samples: list[tuple[list[list[float]], bool]], most: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    """Return the targets of samples, of each the quadrilaterals and whether they are ignored."""
    corners, flags = torch.zeros(len(samples), most, 4, 2), torch.zeros(len(samples), most, dtype=torch.uint8)
    for sample, words in enumerate(samples):
        for place, (corner, is_ignored) in enumerate(words):
            corners[sample, place], flags[sample, place] = torch.tensor(corner), is_ignored
    return corners, torch.tensor([len(words) for words in samples]), flags


def test_cells_whose_centres_are_in_a_word_are_text() -> None:
    text, rest = task().masks(torch.zeros(1, *MAP), targets([(BOX, False)]))
    expected = torch.zeros(MAP, dtype=torch.bool)
    # From x = 8 to 24 and y = 4 to 12, in cells of 4 pixels.
    expected[1:3, 2:6] = True
    assert torch.equal(text[0], expected) and torch.equal(rest[0], ~expected)


def test_ignored_words_are_neither_text_nor_the_rest() -> None:
    beside = [[24, 4], [32, 4], [32, 12], [24, 12]]
    over = [[8, 4], [12, 4], [12, 12], [8, 12]]
    text, rest = task().masks(
        torch.zeros(2, *MAP), targets([(BOX, False), (beside, True)], [(BOX, False), (over, True)])
    )
    assert [int(part.sum()) for part in (text[0], rest[0])] == [8, 96 - 8 - 4]
    assert [int(part.sum()) for part in (text[1], rest[1])] == [6, 96 - 8]


def test_filling_agrees_with_another_implementation() -> None:
    random = np.random.default_rng(0)
    # Concave ones are among these. What is inside of one that crosses itself is a matter of taste.
    corners = random.uniform(0, 40, (60, 4, 2))
    x, y = np.arange(40) + 0.5, np.arange(30) + 0.5
    filled = fill(torch.from_numpy(corners), torch.from_numpy(x), torch.from_numpy(y)).numpy()
    points = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    compared = 0
    for polygon, mask in zip(corners, filled, strict=True):
        (a, b, c, d) = polygon
        if not _cross(a, b, c, d) and not _cross(b, c, d, a):
            closed = Polygon(np.vstack([polygon, polygon[:1]]), closed=True)
            assert np.array_equal(closed.contains_points(points).reshape(30, 40), mask)
            compared += 1
    assert compared > 20 and filled.any(axis=(1, 2)).sum() > 50


def _cross(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray) -> bool:
    """Tell whether the edges ab and cd cross."""

    def side(p: np.ndarray, q: np.ndarray, r: np.ndarray) -> float:
        return (q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0])

    return side(a, b, c) * side(a, b, d) < 0 and side(c, d, a) * side(c, d, b) < 0


def test_the_loss_is_half_of_text_and_half_of_the_rest() -> None:
    logits = torch.full((1, 1, *MAP), math.log(3), dtype=torch.float64)
    # The odds are 3 to 1: ln(4/3) where there is text, ln 4 elsewhere, however much there is of either.
    expected = (math.log(4 / 3) + math.log(4)) / 2
    assert task().loss((logits,), targets([(BOX, False)])).item() == pytest.approx(expected, rel=1e-12)
    # Without text only the other half is left.
    assert task().loss((logits,), targets([])).item() == pytest.approx(math.log(4) / 2, rel=1e-12)


def test_losses_and_counts_add_up_however_samples_are_divided() -> None:
    logits = torch.randn(3, 1, *MAP, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    small = [[1.0, 1], [30, 3], [28, 20], [2, 9]]
    words = targets([(BOX, False)], [(small, False), (BOX, True)], [])
    whole, parts = (logits,), (slice(0, 1), slice(1, 3))
    losses = [task().loss((logits[part],), tuple(t[part] for t in words)) for part in parts]
    assert task().loss(whole, words).item() == pytest.approx(sum(losses).item(), rel=1e-12)
    scores = [task().score((logits[part],), tuple(t[part] for t in words)) for part in parts]
    assert torch.equal(task().score(whole, words), sum(scores))


def test_metrics_on_numbers_worked_by_hand() -> None:
    logits = torch.full((1, 1, *MAP), -1.0)
    # 6 of the word's 8 cells are found, and 4 beside it.
    logits[0, 0, 1:3, 3:6] = 1
    logits[0, 0, 5, :4] = 1
    counts = task().score((logits,), targets([(BOX, False)])).tolist()
    assert counts == [6, 4, 2]
    metrics = task().metrics(dict(zip(task().sums, counts, strict=True)), 1)
    assert metrics == pytest.approx({"precision": 0.6, "recall": 0.75, "f_measure": 2 / 3})
    assert set(task().metrics(dict.fromkeys(task().sums, 0.0), 1).values()) == {0.0}


def test_a_picture_shows_what_is_taken_for_text() -> None:
    logits = torch.full((1, 1, *MAP), -1.0)
    logits[0, 0, 0, 0] = 1
    picture = task().draw(np.zeros(SHAPE, np.uint8), (logits,), ("text",))
    assert picture.shape == SHAPE and picture.dtype == np.uint8
    assert np.argwhere(picture.any(axis=2)).max(axis=0).tolist() == [3, 3]


@pytest.mark.parametrize(("shape", "rows", "columns"), [((384, 640, 3), 96, 160), ((30, 50, 1), 8, 13)])
def test_the_network_marks_a_quarter_of_the_resolution(
    shape: tuple[int, int, int], rows: int, columns: int
) -> None:
    model = build(classes=1, shape=shape, width=4, blocks=2)
    images = torch.zeros(2, shape[2], *shape[:2])
    assert model(images).shape == (2, 1, rows, columns)


def test_the_network_learns_where_a_word_is() -> None:
    torch.manual_seed(0)
    images, words = torch.zeros(2, 3, *SHAPE[:2]), []
    for sample, left in enumerate((4, 28)):
        images[sample, :, 8:20, left : left + 12] = 1
        words.append([([[left, 8], [left + 12, 8], [left + 12, 20], [left, 20]], False)])
    model, goal = build(classes=1, shape=SHAPE, width=8, blocks=2), targets(*words)
    parameters = list(model.parameters())
    for _ in range(30):
        loss = task().loss((model(images),), goal)
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.data -= 0.3 * gradient
    counts = task().score((model.eval()(images),), goal).tolist()
    assert task().metrics(dict(zip(task().sums, counts, strict=True)), 2)["f_measure"] > 0.9
