"""Map a unit square onto quadrilaterals and back, and draw masks in perspective.

Plain sums, products and quotients alone, which are the same on every machine.

Source: Heckbert, Fundamentals of Texture Mapping and Image Warping (1989), section 2.2.3.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Point = tuple[float, float]


def square_to_quadrilateral(corners: Sequence[Point]) -> np.ndarray:
    """Return the matrix, float64 [3, 3], that maps (0,0), (1,0), (1,1), (0,1) to the four corners in turn."""
    (x0, y0), (x1, y1), (x2, y2), (x3, y3) = corners
    sum_x, sum_y = x0 - x1 + x2 - x3, y0 - y1 + y2 - y3
    dx1, dx2, dy1, dy2 = x1 - x2, x3 - x2, y1 - y2, y3 - y2
    divisor = dx1 * dy2 - dx2 * dy1
    g = (sum_x * dy2 - dx2 * sum_y) / divisor
    h = (dx1 * sum_y - sum_x * dy1) / divisor
    return np.array(
        [[x1 - x0 + g * x1, x3 - x0 + h * x3, x0], [y1 - y0 + g * y1, y3 - y0 + h * y3, y0], [g, h, 1.0]]
    )


def adjugate(matrix: np.ndarray) -> np.ndarray:
    """Return the inverse of a matrix [3, 3] up to a factor, which a perspective mapping doesn't have."""
    (a, b, c), (d, e, f), (g, h, i) = matrix.tolist()
    return np.array(
        [
            [e * i - f * h, c * h - b * i, b * f - c * e],
            [f * g - d * i, a * i - c * g, c * d - a * f],
            [d * h - e * g, b * g - a * h, a * e - b * d],
        ]
    )


def project(
    matrix: np.ndarray, x: np.ndarray | float, y: np.ndarray | float
) -> tuple[np.ndarray, np.ndarray]:
    """Map points by a matrix [3, 3]."""
    # Not a matrix product, whose order of sums depends on the machine.
    (a, b, c), (d, e, f), (g, h, i) = matrix.tolist()
    divisor = g * x + h * y + i
    return np.asarray((a * x + b * y + c) / divisor), np.asarray((d * x + e * y + f) / divisor)


def warp(mask: np.ndarray, corners: Sequence[tuple[int, int]]) -> tuple[np.ndarray, tuple[int, int]]:
    """Draw a mask, uint8 [height, width], into a quadrilateral.

    Returns:
        the drawn mask, int32 [rows, columns] from 0 to 256, and the x and y of its first pixel. It covers the
        quadrilateral's bounding box.
    """
    left, right = min(x for x, _ in corners), max(x for x, _ in corners)
    top, bottom = min(y for _, y in corners), max(y for _, y in corners)
    x = np.arange(left, right) + 0.5
    y = (np.arange(top, bottom) + 0.5)[:, np.newaxis]
    u, v = project(adjugate(square_to_quadrilateral(corners)), x, y)
    # In 1/256 of a pixel of the mask, which has a border of zeros around it, so that outside is zero.
    height, width = mask.shape
    bordered = np.pad(mask, (1, 2)).astype(np.int32)
    column = np.floor((u * width + 0.5).clip(0, width + 1) * 256).astype(np.int32)
    row = np.floor((v * height + 0.5).clip(0, height + 1) * 256).astype(np.int32)
    (i, down), (j, across) = np.divmod(row, 256), np.divmod(column, 256)
    upper = bordered[i, j] * (256 - across) + bordered[i, j + 1] * across
    lower = bordered[i + 1, j] * (256 - across) + bordered[i + 1, j + 1] * across
    drawn = (upper * (256 - down) + lower * down) >> 16
    return drawn + (drawn >> 7), (left, top)
