"""Crop and mirror images: a random window of the padded image, and its mirror image half of the time.

This is the usual augmentation of small images (He 2016, section 4.2): a margin of black pixels is added on
all sides, here an eighth of the side, and a window of the image's own size is cut out at random:

    + - - - - - - +
    |  . . . . .  |    dots: the image; dashes: its margin
    |  .  +-----------+
    |  .  | . .  |    |    the window moved by (rows, columns) = (2, 3): what lies outside the image is black
    + - - | - - -+    |
          +-----------+
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from src.data.arrays import Arrays
from src.data.augmentation import draws
from src.data.samples import Samples

# A margin is this part of the side: 4 pixels of 32, as usual.
MARGIN = 8
BITS = 20


@dataclass(frozen=True)
class Moves:
    """How images are augmented.

    Attributes:
        rows: how many pixels each window is moved down, int64 [images].
        columns: how many pixels each window is moved right, int64 [images].
        mirrored: whether left and right of each window are exchanged, bool [images].
    """

    rows: np.ndarray
    columns: np.ndarray
    mirrored: np.ndarray


def augment(samples: Samples, seed: int, epoch: int, indices: np.ndarray, arrays: Arrays) -> Samples:
    """Return the samples with their first input, images, cropped and mirrored, as `Augmentation` says.

    Targets stay as they are: a label is the same in a mirror image.
    """
    if not samples.inputs:
        return samples
    images, *others = samples.inputs
    moves = draw(seed, epoch, indices, images.shape[1:])
    return replace(samples, inputs=(crop_flip(images, moves), *others))


def draw(seed: int, epoch: int, indices: np.ndarray, shape: tuple[int, ...]) -> Moves:
    """Draw how the samples of `indices` are moved, by (seed, epoch, index) alone, as `Augmentation` says.

    The `shape` of an image is (height, width, ...).
    """
    bits = draws.words(seed, epoch, indices, 1)[0]
    height, width = shape[:2]
    return Moves(
        _offset(bits, height // MARGIN),
        _offset(bits >> np.uint64(BITS), width // MARGIN),
        (bits >> np.uint64(63)).astype(bool),
    )


def _offset(bits: np.ndarray, most: int) -> np.ndarray:
    """Return numbers from -most to most, int64, from the lowest `BITS` bits of words."""
    low = bits & np.uint64((1 << BITS) - 1)
    return ((low * np.uint64(2 * most + 1)) >> np.uint64(BITS)).astype(np.int64) - most


def crop_flip(images: np.ndarray, moves: Moves) -> np.ndarray:
    """Return the images [images, height, width, channels] moved and mirrored; these stay as they are."""
    result = np.empty_like(images)
    height, width, channels = images.shape[1:]
    window = np.empty((height, width, channels), dtype=images.dtype)
    # As lists, since reading single numbers out of arrays takes as long as to copy a small image.
    drawn = (moves.rows.tolist(), moves.columns.tolist(), moves.mirrored.tolist())
    for image, target, down, right, mirrored in zip(images, result, *drawn, strict=True):
        cut = window if mirrored else target
        if down or right:
            cut.fill(0)
        inside = image[max(down, 0) : height + down, max(right, 0) : width + right]
        top, left = max(-down, 0), max(-right, 0)
        cut[top : top + inside.shape[0], left : left + inside.shape[1]] = inside
        if mirrored:
            # By channel: numpy is slow where the innermost loop is over three bytes.
            for channel in range(channels):
                target[..., channel] = cut[:, ::-1, channel]
    return result
