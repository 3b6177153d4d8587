"""Augment training images: a random window of the padded image, and its mirror image half of the time.

This is the usual augmentation of small images (He 2016, section 4.2): a margin of black pixels is added on
all sides, here an eighth of the side, and a window of the image's own size is cut out at random:

    + - - - - - - +
    |  . . . . .  |    dots: the image; dashes: its margin
    |  .  +-----------+
    |  .  | . .  |    |    the window moved by (rows, columns) = (2, 3): what lies outside the image is black
    + - - | - - -+    |
          +-----------+

How an image is moved depends on (seed, epoch, its index) alone, and so neither on the batch that it is in nor
on which process asks: all strategies train on the same pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# A margin is this part of the side: 4 pixels of 32, as usual.
MARGIN = 8
# Draws of augmentation are others than those of anything else that is drawn from the run's seed.
PURPOSE = 0x41554722
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


def draw(seed: int, epoch: int, indices: np.ndarray, shape: tuple[int, ...]) -> Moves:
    """Draw how the samples of `indices` [images] are moved in an epoch, by (seed, epoch, index) alone.

    Args:
        seed: the run's seed.
        epoch: the epoch, from 0.
        indices: int64 [images], the samples' places among all training samples.
        shape: (height, width, ...) of an image.
    """
    key = np.zeros(1, dtype=np.uint64)
    for word in (PURPOSE, seed, epoch):
        key = _mix(key ^ np.uint64(word))
    bits = _mix(key ^ indices.astype(np.uint64))
    height, width = shape[:2]
    return Moves(
        _offset(bits, height // MARGIN),
        _offset(bits >> np.uint64(BITS), width // MARGIN),
        (bits >> np.uint64(63)).astype(bool),
    )


def _mix(words: np.ndarray) -> np.ndarray:
    """Scramble words, uint64, so that each bit depends on all: splitmix64 (Steele 2014, figure 14)."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


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
