"""Reduce a detector's thousands of candidates to one for each object."""

from __future__ import annotations

import numpy as np

from src.tasks.torch.text_detection.parallelograms import ious


def locality_aware_nms(
    corners: np.ndarray, scores: np.ndarray, threshold: float
) -> tuple[np.ndarray, np.ndarray]:
    """Merge candidates that follow one another, then suppress those that overlap a better one.

    A candidate whose intersection over union with what the ones before it were merged into is above
    `threshold` is merged into that too: corners are means weighted by the scores, and the score is their sum.
    What is left undergoes standard non-maximum suppression with the same threshold (Zhou et al. 2017, EAST,
    section 3.6 and algorithm 1).

    Args:
        corners: those of rectangles [n, 4, 2], clockwise from each one's top left, in the order of the rows
            of the map that they come from and from left to right in each.
        scores: the candidates' scores [n], above 0.
        threshold: intersection over union, of 0 to 1.

    Returns corners [k, 4, 2] and scores [k], both float64, by falling score.
    """
    merged, totals = _merge(corners.astype(np.float64), scores.astype(np.float64), threshold)
    kept = _suppress(merged, totals, threshold)
    return merged[kept], totals[kept]


def _merge(corners: np.ndarray, scores: np.ndarray, threshold: float) -> tuple[np.ndarray, np.ndarray]:
    """Return corners [k, 4, 2] and scores [k] of runs of candidates that were merged one by one."""
    far_from_last = np.flatnonzero(ious(corners[:-1], corners[1:]) <= threshold) + 1
    ends = np.append(far_from_last, len(corners))
    merged, totals = [], []
    start = 0
    while start < len(corners):
        stop = _end_of_run(corners, scores, start, ends[ends > start], threshold)
        merged.append(np.average(corners[start:stop], axis=0, weights=scores[start:stop]))
        totals.append(scores[start:stop].sum())
        start = stop
    return np.array(merged).reshape(-1, 4, 2), np.array(totals)


def _end_of_run(
    corners: np.ndarray, scores: np.ndarray, start: int, ends: np.ndarray, threshold: float
) -> int:
    """Return the index before which the run of candidates ends that begins at `start`.

    `ends` are the likely ones, at candidates that are far from the one before. All candidates up to one of
    these are tested at once, each against the mean of those before it, which is that of the run if the run
    gets there.
    """
    for end in ends:
        if end == start + 1:
            return int(end)
        tested = corners[start + 1 : end + 1]
        weights = scores[start:end, None, None]
        means = np.cumsum(corners[start:end] * weights, axis=0) / np.cumsum(weights, axis=0)
        near = ious(means[: len(tested)], tested) > threshold
        if not near.all():
            return start + 1 + int(near.argmin())
    return len(corners)


def _suppress(corners: np.ndarray, scores: np.ndarray, threshold: float) -> np.ndarray:
    """Return the indices [k], by falling score, of those that overlap no kept better one too much."""
    lows, highs = corners.min(axis=1), corners.max(axis=1)
    left = np.argsort(-scores, kind="stable")
    kept = []
    while left.size:
        best, left = left[0], left[1:]
        kept.append(best)
        apart = (lows[left] > highs[best]) | (highs[left] < lows[best])
        touching = np.flatnonzero(~apart.any(axis=1))
        near = ious(corners[left[touching]], corners[best][None]) > threshold
        left = np.delete(left, touching[near])
    return np.array(kept, dtype=np.int64)
