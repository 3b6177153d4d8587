"""Turn, scale and move images with the words in them, and change their light a little.

A position (x, y) is one on the plane on which the pixel of column i and row j covers the square from (i, j)
to (i + 1, j + 1). An image and the corners of its words go through the same map of that plane: a turn and a
scaling about the image's middle, then a move. The window, of the image's own size, stays over an enlarged
image; a shrunk image stays in the window (but for corners that the turn swings out):

    enlarged: + - - - - - - - +          shrunk: +-----------+    dashes with gaps: the image;
              |  +-----------+|                  |    + - - +|    the other rectangle: the window
              |  |           ||                  |    |     ||
              |  +-----------+|                  |    + - - +|
              + - - - - - - - +                  +-----------+

What lies outside the image has the dataset's mean colour. Normalised that is zero, but for a rounding, and so
are the margins that a model's convolutions add. Nothing is mirrored, for mirrored letters are none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import shapely
from PIL import Image

from src.data.arrays import Arrays
from src.data.augmentation import draws
from src.data.samples import Samples

# Degrees, either way.
TURN = 10.0
SCALES = (0.7, 1.5)
CONTRASTS = (0.8, 1.25)
# Levels, of 255, get so much lighter or darker.
BRIGHTNESS = 24.0
MIDDLE = 127.5
# A word of which less than this part of its area is inside can't be told from its first or last letters.
LEAST_INSIDE = 0.8
# Pixels. Letters can't be read below that, and a detector's map often has a cell for as many.
LEAST_SIDE = 4.0


@dataclass(frozen=True)
class Moves:
    """How images are augmented.

    Attributes:
        matrices: float64 [images, 2, 3]; what is at (x, y) comes to matrix @ (x, y, 1).
        contrast: what a value's distance from the middle of all values is multiplied by, float64 [images].
        brightness: what is added to a value then, float64 [images].
    """

    matrices: np.ndarray
    contrast: np.ndarray
    brightness: np.ndarray


def augment(samples: Samples, seed: int, epoch: int, indices: np.ndarray, arrays: Arrays) -> Samples:
    """Return the samples with images and words moved together, as `Augmentation` says.

    The first input is images in RGB, uint8 [samples, height, width, 3]; the targets are words, as those of
    `move`.
    """
    moves = draw(seed, epoch, indices, arrays.shape)
    if samples.inputs:
        images, *others = samples.inputs
        colour = tuple(round(255 * mean) for mean in arrays.mean)
        samples = replace(samples, inputs=(warp(images, moves, colour), *others))
    if samples.targets:
        samples = replace(samples, targets=move(samples.targets, moves.matrices, arrays.shape))
    return samples


def draw(seed: int, epoch: int, indices: np.ndarray, shape: tuple[int, ...]) -> Moves:
    """Draw how the samples of `indices` are augmented, by (seed, epoch, index) alone, as `Augmentation` says.

    Angles, moves and brightness are evenly drawn; scales and contrasts so that a factor and its inverse are
    equally likely. The `shape` of an image is (height, width, ...).
    """
    turn, scale, right, down, contrast, brightness = draws.fractions(seed, epoch, indices, 6)
    angles = np.deg2rad(TURN * (2 * turn - 1))
    factors = _between(SCALES, scale)
    cosines, sines = factors * np.cos(angles), factors * np.sin(angles)
    linear = np.stack([cosines, -sines, sines, cosines], axis=-1).reshape(-1, 2, 2)
    middle = np.array([shape[1], shape[0]]) / 2
    # As far as the edges of the image, before its turn, and of the window are apart.
    moved = np.abs(factors - 1)[:, None] * (2 * np.stack([right, down], axis=-1) - 1) * middle
    matrices = np.concatenate([linear, (middle - linear @ middle + moved)[..., None]], axis=-1)
    return Moves(matrices, _between(CONTRASTS, contrast), BRIGHTNESS * (2 * brightness - 1))


def _between(bounds: tuple[float, float], fractions: np.ndarray) -> np.ndarray:
    """Return the factors between the bounds, evenly spread by their logarithms, at fractions of the way."""
    low, high = bounds
    return low * (high / low) ** fractions


def warp(images: np.ndarray, moves: Moves, colour: tuple[int, ...]) -> np.ndarray:
    """Return images, uint8 [images, height, width, 3], moved and relit; these stay as they are.

    Outside of an image is `colour` [3].
    """
    result = np.empty_like(images)
    values = np.arange(256) - MIDDLE
    tables = moves.contrast[:, None] * values + MIDDLE + moves.brightness[:, None]
    tables = tables.round().clip(0, 255).astype(np.uint8)
    # Pillow asks where a pixel of the result comes from.
    inverse = np.linalg.inv(moves.matrices[..., :2])
    origins = np.concatenate([inverse, -inverse @ moves.matrices[..., 2:]], axis=-1).reshape(-1, 6)
    for number, image in enumerate(images):
        # By three tables, one a channel.
        relit = Image.fromarray(image).point(tables[number].tolist() * image.shape[-1])
        result[number] = relit.transform(
            relit.size,
            Image.Transform.AFFINE,
            origins[number].tolist(),
            Image.Resampling.BILINEAR,
            fillcolor=colour,
        )
    return result


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
