"""Measure how parallelograms overlap, many pairs at once.

Rectangles and weighted means of rectangles' corners are parallelograms. A pair takes shapely some 20
microseconds, and a detector's candidates make thousands of pairs an image.
"""

from __future__ import annotations

import numpy as np

# Each corner is followed by this one.
NEXT = [1, 2, 3, 0]


def areas(corners: np.ndarray) -> np.ndarray:
    """Return the areas [n] of corners [n, 4, 2], in turn; below 0 where they turn against the clock.

    The clock is that of an image, whose y grows downwards.
    """
    return _cross(corners[..., 1, :] - corners[..., 0, :], corners[..., 3, :] - corners[..., 0, :])


def ious(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the intersections over unions [n] of parallelograms with the corners [n, 4, 2], pair by pair.

    Those of a pair turn the same way. It is 0 where either has no area.

    Along with the plane, the second one of a pair is made the unit square. The first one's share of that is
    the sum of what is below its edges (Green's theorem), each edge cut to 0 <= x <= 1 and its y held to 0 to
    1. No sum depends on which side of an edge a point is, so that edges may coincide.
    """
    origin, right, down = second[..., :1, :], second[..., 1:2, :], second[..., 3:, :]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        own, other = np.abs(areas(first)), areas(second)
        x = _cross(first - origin, down - origin) / other[..., None]
        y = _cross(right - origin, first - origin) / other[..., None]
        shared = np.abs(_within_unit_square(x, y) * other)
        iou = shared / (own + np.abs(other) - shared)
    return np.where(np.isfinite(iou), iou, 0.0)


def _within_unit_square(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the signed areas [n] in the unit square of quadrilaterals with the corners x and y [n, 4]."""
    next_x, next_y = x[..., NEXT], y[..., NEXT]
    width = next_x - x
    slope = np.divide(next_y - y, width, out=np.zeros_like(width), where=width != 0)
    # Edges cut to 0 <= x <= 1; one beside that becomes a point, which adds nothing.
    start, stop = np.clip(x, 0, 1), np.clip(next_x, 0, 1)
    begin, end = y + (start - x) * slope, y + (stop - x) * slope
    low, high = np.clip(begin, 0, 1), np.clip(end, 0, 1)
    rise = end - begin
    # These are the shares of an edge between y = 0 and 1, and above.
    between = np.divide(high - low, rise, out=np.ones_like(rise), where=rise != 0)
    above = np.maximum(end, 1) - np.maximum(begin, 1)
    above = np.divide(above, rise, out=np.zeros_like(rise), where=rise != 0)
    return ((start - stop) * (between * (low + high) / 2 + above)).sum(axis=-1)


def _cross(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return first[..., 0] * second[..., 1] - first[..., 1] * second[..., 0]
