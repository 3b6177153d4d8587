"""Locality-aware non-maximum suppression, against algorithm 1 as it is printed."""

from __future__ import annotations

import numpy as np
import pytest

from src.tasks.torch.text_detection.nms import locality_aware_nms

Point = tuple[float, float]
Polygon = list[Point]


def row(*lefts: float, width: float = 10, top: float = 0) -> np.ndarray:
    """Return boxes [n, 4, 2] of a height of 4, side by side."""
    corners = np.array([[0, top], [width, top], [width, top + 4], [0, top + 4]])
    return corners + np.array([[[left, 0]] for left in lefts])


def test_without_candidates_there_is_nothing() -> None:
    corners, scores = locality_aware_nms(np.zeros((0, 4, 2), np.float32), np.zeros(0, np.float32), 0.2)
    assert corners.shape == (0, 4, 2) and scores.shape == (0,)
    assert corners.dtype == scores.dtype == np.float64


def test_a_single_candidate_stays() -> None:
    corners, scores = locality_aware_nms(row(3), np.array([0.9]), 0.2)
    assert np.array_equal(corners, row(3)) and scores.tolist() == [0.9]


def test_merged_corners_are_weighted_and_scores_are_summed() -> None:
    # Intersection over union 8/12; the mean is at (0 * 1 + 2 * 3) / 4.
    corners, scores = locality_aware_nms(row(0, 2), np.array([1.0, 3.0]), 0.5)
    assert np.allclose(corners, row(1.5), rtol=0, atol=1e-12) and scores.tolist() == [4.0]


def test_an_overlap_of_exactly_the_threshold_leaves_both() -> None:
    # 6 of 12 columns.
    boxes = row(0, width=9), row(3, width=9)
    corners, scores = locality_aware_nms(np.concatenate(boxes), np.array([1.0, 2.0]), 0.5)
    assert np.array_equal(corners, np.concatenate(boxes[::-1])) and scores.tolist() == [2.0, 1.0]
    assert len(locality_aware_nms(np.concatenate(boxes), np.array([1.0, 2.0]), 0.49)[0]) == 1


def test_candidates_are_compared_with_the_mean_of_all_before() -> None:
    # Each overlaps its predecessor by 7/13, which is above a half. The mean of the first two, 1.5, overlaps
    # the third one, 6, by 5.5/14.5. So that begins anew, and is close enough to the fourth one.
    corners, scores = locality_aware_nms(row(0, 3, 6, 9), np.ones(4), 0.5)
    assert np.allclose(corners, np.concatenate([row(1.5), row(7.5)]), rtol=0, atol=1e-12)
    assert scores.tolist() == [2.0, 2.0]


def test_a_candidate_far_from_the_last_one_may_be_near_the_mean() -> None:
    # The third one overlaps the second one by 3/17, but the mean before it, at 0.1, by 5.9/14.1.
    corners, scores = locality_aware_nms(row(0, 3, -4), np.array([29.0, 1.0, 1.0]), 0.4)
    assert scores.tolist() == [31.0]
    assert np.allclose(corners, row((3 - 4) / 31), rtol=0, atol=1e-12)


def test_boxes_merge_across_rows_by_suppression_alone() -> None:
    # Between two words of a row, the run of the first one ends; the next row begins with it again.
    boxes = np.concatenate([row(0, 1, 50), row(0, 1, top=1)])
    corners, scores = locality_aware_nms(boxes, np.array([1.0, 1.0, 1.0, 1.5, 1.5]), 0.2)
    assert np.allclose(corners, np.concatenate([row(0.5, top=1), row(50)]), rtol=0, atol=1e-12)
    assert scores.tolist() == [3.0, 1.0]


def test_what_a_suppressed_box_overlaps_stays() -> None:
    # The middle one is not next to the first in order; it goes, and with it the reason to drop the last.
    boxes = np.concatenate([row(0), row(100), row(5), row(200), row(10)])
    corners, scores = locality_aware_nms(boxes, np.array([3.0, 0.1, 2.0, 0.2, 1.0]), 0.2)
    assert corners[:, 0, 0].tolist() == [0, 10, 200, 100] and scores.tolist() == [3.0, 1.0, 0.2, 0.1]


def test_of_equal_scores_the_first_candidate_stays() -> None:
    boxes = np.concatenate([row(0), row(100), row(1)])
    corners, _ = locality_aware_nms(boxes, np.ones(3), 0.2)
    assert corners[:, 0, 0].tolist() == [0, 100]


@pytest.mark.parametrize("strange", [0.0, np.nan, np.inf])
def test_candidates_without_an_area_stay_alone(strange: float) -> None:
    boxes = np.concatenate([row(0), np.full((2, 4, 2), strange), row(1)])
    corners, scores = locality_aware_nms(boxes, np.array([1.0, 0.5, 0.4, 2.0]), 0.2)
    assert scores.tolist() == [2.0, 0.5, 0.4]
    assert np.array_equal(corners[0], row(1)[0])


@pytest.mark.parametrize("threshold", [0.2, 0.5])
def test_it_is_algorithm_1(threshold: float) -> None:
    random = np.random.default_rng(int(100 * threshold))
    candidates = fewer = 0
    for _ in range(500):
        boxes, weights = detected(random)
        corners, scores = locality_aware_nms(boxes, weights, threshold)
        expected = algorithm_1(
            [[tuple(p) for p in box] for box in boxes.tolist()], weights.tolist(), threshold
        )
        assert len(expected) == len(scores)
        assert np.allclose(scores, [score for _, score in expected], rtol=0, atol=1e-9)
        assert np.allclose(corners, np.array([b for b, _ in expected]).reshape(-1, 4, 2), rtol=0, atol=1e-9)
        candidates, fewer = candidates + len(boxes), fewer + len(boxes) - len(expected)
    # Neither nothing nor everything merges.
    assert 0.3 * candidates < fewer < 0.95 * candidates


def detected(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return 0 to 40 rectangles and scores as a detector gives them: cells of words, row by row."""
    words = random.integers(1, 6)
    centres, sizes = random.uniform(10, 70, (words, 2)), random.uniform((15, 6), (50, 20), (words, 2))
    angles = random.uniform(-0.7, 0.7, words)
    y, x = np.mgrid[2:80:8, 2:80:4]
    cells = np.stack([x.ravel(), y.ravel()], axis=1)
    # Along a word's own axes.
    inside = np.abs((cells[:, None] - centres)[..., None, :] @ turns(angles))[..., 0, :] < sizes / 2
    (taken,) = np.nonzero(inside.all(axis=2).any(axis=1))
    taken = taken[: random.integers(0, 41)]
    word = inside.all(axis=2).argmax(axis=1)[taken]
    # What a network is wrong by, sometimes wildly.
    wrong = random.choice([0.3, 3.0, 6.0], (len(taken), 1))
    middles = centres[word] + wrong * random.normal(0, 1, (len(taken), 2))
    halves = np.maximum(sizes[word] + wrong * random.normal(0, 1, (len(taken), 2)), 1) / 2
    slants = angles[word] + random.normal(0, wrong[:, 0] / 30)
    corners = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * halves[:, None]
    boxes = middles[:, None] + corners @ turns(slants).transpose(0, 2, 1)
    return boxes, random.uniform(0.5, 1, len(taken))


def turns(angles: np.ndarray) -> np.ndarray:
    """Return matrices [n, 2, 2] whose columns are the directions along angles and across them."""
    cosines, sines = np.cos(angles), np.sin(angles)
    return np.stack([np.stack([cosines, -sines], axis=1), np.stack([sines, cosines], axis=1)], axis=1)


def algorithm_1(boxes: list[Polygon], scores: list[float], threshold: float) -> list[tuple[Polygon, float]]:
    """Return the boxes and scores that algorithm 1 of Zhou et al. 2017 leaves, one after the other."""
    merged: list[tuple[Polygon, float]] = []
    last: tuple[Polygon, float] | None = None
    for box, score in zip(boxes, scores, strict=True):
        if last is not None and overlap(box, last[0]) > threshold:
            total = score + last[1]
            corners = [
                ((score * x + last[1] * u) / total, (score * y + last[1] * v) / total)
                for (x, y), (u, v) in zip(box, last[0], strict=True)
            ]
            last = corners, total
        else:
            if last is not None:
                merged.append(last)
            last = box, score
    if last is not None:
        merged.append(last)
    kept: list[tuple[Polygon, float]] = []
    for box, score in sorted(merged, key=lambda pair: -pair[1]):
        if all(overlap(box, better) <= threshold for better, _ in kept):
            kept.append((box, score))
    return kept


def overlap(first: Polygon, second: Polygon) -> float:
    """Return the intersection over union of convex polygons, by Sutherland and Hodgman's clipping."""
    clipped = first
    for (ax, ay), (bx, by) in zip(second, second[1:] + second[:1], strict=True):
        whole, clipped = clipped, []
        sides = [(bx - ax) * (y - ay) - (by - ay) * (x - ax) for x, y in whole]
        for i, ((x, y), side) in enumerate(zip(whole, sides, strict=True)):
            (before_x, before_y), before = whole[i - 1], sides[i - 1]
            if (side > 0) != (before > 0):
                share = before / (before - side)
                clipped.append((before_x + share * (x - before_x), before_y + share * (y - before_y)))
            if side > 0:
                clipped.append((x, y))
    shared = area(clipped)
    return shared / (area(first) + area(second) - shared)


def area(polygon: Polygon) -> float:
    """Return a polygon's area by the shoelace formula."""
    return sum(x * v - u * y for (x, y), (u, v) in zip(polygon, polygon[1:] + polygon[:1], strict=True)) / 2
