"""Move the words of images by affine maps, and say which of them can still be read."""

from __future__ import annotations

import numpy as np
import shapely

# A word of which less than this part of its area is inside can't be told from its first or last letters.
LEAST_INSIDE = 0.8
# Pixels. Letters can't be read below that, and a detector's map often has a cell for as many.
LEAST_SIDE = 4.0


def move(
    words: tuple[np.ndarray, ...], matrices: np.ndarray, shape: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return words where affine maps of their images move them; these stay as they are.

    A word that is wholly outside its image then is left out: those after it move up. One of which a part is
    outside becomes an ignored one, and so does one with a side below `LEAST_SIDE`. One that is almost inside,
    by `LEAST_INSIDE` of its area, keeps all of its quadrilateral, which reaches over the border: cut to the
    image it would have up to eight corners.

    Args:
        words: quadrilaterals, float32 [images, most, 4, 2] in pixels (x, y), padded by zeros; their number,
            int64 [images]; and which ones are ignored, uint8 [images, most].
        matrices: float64 [images, 2, 3]; a position (x, y) comes to matrix @ (x, y, 1).
        shape: (height, width, ...) of an image.

    Returns:
        The same three arrays, of the same shapes and types.
    """
    corners, numbers, ignored = words
    linear, offsets = matrices[:, None, :, :2], matrices[:, None, None, :, 2]
    moved = corners.astype(np.float64) @ linear.swapaxes(-1, -2) + offsets
    present = np.arange(corners.shape[1]) < numbers[:, None]
    inside = np.zeros(present.shape)
    inside[present] = _shares_inside(moved[present], shape)
    sides = np.linalg.norm(moved - np.roll(moved, -1, axis=2), axis=-1).min(axis=-1)
    unread = (ignored != 0) | (inside < LEAST_INSIDE) | (sides < LEAST_SIDE)
    kept = inside > 0
    # Stable, so that the words that are kept stay in their order.
    order = np.argsort(~kept, axis=1, kind="stable")
    moved[~kept] = 0
    return (
        np.take_along_axis(moved, order[..., None, None], axis=1).astype(corners.dtype),
        kept.sum(axis=1, dtype=numbers.dtype),
        np.take_along_axis(kept & unread, order, axis=1).astype(ignored.dtype),
    )


def _shares_inside(corners: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return what part of the area of each quadrilateral [words, 4, 2] is inside the image, [words]."""
    height, width = shape[:2]
    low, high = corners.min(axis=1), corners.max(axis=1)
    whole = ((low >= 0) & (high <= (width, height))).all(axis=1)
    # Few words cross the border, and shapely takes longer than all else.
    crossing = ~whole & ((low < (width, height)) & (high > 0)).all(axis=1)
    shares = whole.astype(np.float64)
    # A hull is valid even where the corners of a word that was marked by hand cross.
    hulls = shapely.convex_hull(shapely.linestrings(corners[crossing]))
    inside = shapely.area(shapely.intersection(hulls, shapely.box(0, 0, width, height)))
    shares[crossing] = inside / np.maximum(shapely.area(hulls), np.finfo(np.float64).tiny)
    return shares
