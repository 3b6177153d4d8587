"""Turn words into the maps that EAST learns, and maps back into boxes (Zhou et al. 2017, section 3.3).

Each pixel of a map says whether it is well inside a word, and where the sides of the word's rectangle are,
seen from the pixel's centre, in a frame that is turned like the rectangle:

        +------------------+
        |      | top       |
        | left o   right   |      o: the pixel's centre; the four distances are in pixels of the image
        |      | bottom    |
        +------------------+      angle: of the top side, clockwise on the screen, between -45 and 45 degrees
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import shapely

CORNERS = 4
# Distances to top, right, bottom and left, and the angle.
GEOMETRY = 5
# Pixels, of what is divided by.
LEAST = 1e-9


class Maps(NamedTuple):
    """The maps that a detector is to give of an image.

    Attributes:
        text: uint8 [rows, columns], 1 for pixels inside a shrunk word.
        ignored: uint8 [rows, columns], 1 for pixels that aren't learned from.
        geometry: float32 [5, rows, columns], 0 where there is no text.
    """

    text: np.ndarray
    ignored: np.ndarray
    geometry: np.ndarray


def encode(
    words: np.ndarray, ignored: np.ndarray, shape: tuple[int, int], stride: int, shrink: float
) -> Maps:
    """Draw the maps of an image's words.

    Where shrunk words overlap the last one holds. A word that no pixel is well inside of is ignored.

    Args:
        words: corners [words, 4, 2] in pixels (x, y) of the image, in turn.
        ignored: which words are not learned from, bool [words].
        shape: rows and columns of the maps.
        stride: pixels of the image to a pixel of the maps.
        shrink: how far the sides of a word move inwards, of the shorter of the sides at each corner.
    """
    maps = Maps(
        np.zeros(shape, np.uint8), np.zeros(shape, np.uint8), np.zeros((GEOMETRY, *shape), np.float32)
    )
    if not len(words):
        return maps
    corners = words.astype(np.float64)
    frames = rectangles(corners)
    inner = shrunk(corners, shrink)
    for word, core, frame, is_ignored in zip(corners, inner, frames, ignored, strict=True):
        if is_ignored:
            rows, columns, inside = _covered(word, shape, stride)
            maps.ignored[rows, columns][inside] = 1
            continue
        rows, columns, inside = _covered(core, shape, stride)
        if not inside.any():
            # A word between the centres of pixels is too small to be learned, and isn't background.
            rows, columns, inside = _covered(word, shape, stride)
            maps.ignored[rows, columns][inside] = 1
            continue
        maps.text[rows, columns][inside] = 1
        x, y = _centres(rows, columns, stride)
        maps.geometry[:, rows, columns][:, inside] = _geometry(frame, x, y)[:, inside]
    maps.text[maps.ignored == 1] = 0
    maps.geometry[:, maps.text == 0] = 0
    return maps


def decode(geometry: np.ndarray, rows: np.ndarray, columns: np.ndarray, stride: int) -> np.ndarray:
    """Return the boxes that pixels of a map see: corners [pixels, 4, 2] in pixels (x, y) of the image.

    Args:
        geometry: [5, pixels], as `Maps.geometry` has them.
        rows: of the pixels [pixels].
        columns: of the pixels [pixels].
        stride: pixels of the image to a pixel of the map.
    """
    top, right, bottom, left, angle = geometry.astype(np.float64)
    x, y = (columns + 0.5) * stride, (rows + 0.5) * stride
    cosine, sine = np.cos(angle), np.sin(angle)
    across = np.stack([-left, right, right, -left], 1)
    down = np.stack([-top, -top, bottom, bottom], 1)
    return np.stack(
        [
            x[:, None] + cosine[:, None] * across - sine[:, None] * down,
            y[:, None] + sine[:, None] * across + cosine[:, None] * down,
        ],
        axis=2,
    )


def rectangles(words: np.ndarray) -> np.ndarray:
    """Return the smallest rectangle around each word, corners [words, 4, 2] clockwise from its top left.

    Its top is the side that is nearest to level.
    """
    found = np.empty_like(words)
    envelopes = np.asarray(shapely.oriented_envelope(shapely.multipoints(words)))
    for place, envelope in enumerate(envelopes):
        ring = shapely.get_coordinates(envelope)[:CORNERS]
        # The envelope of a word without an area is a line or a point.
        box = ring if len(ring) == CORNERS else words[place]
        # By their bearing from the centre corners are clockwise on the screen, where y grows downwards.
        bearing = np.arctan2(*(box - box.mean(axis=0)).T[::-1])
        box = box[np.argsort(bearing, kind="stable")]
        sides = np.roll(box, -1, axis=0) - box
        heading = sides[:, 0] / np.maximum(np.linalg.norm(sides, axis=1), LEAST)
        # Clockwise, the top side is the one that runs to the right.
        found[place] = np.roll(box, -int(np.argmax(heading)), axis=0)
    return found


def shrunk(words: np.ndarray, part: float) -> np.ndarray:
    """Return words [words, 4, 2] whose sides are moved inwards (section 3.3.1).

    The longer pair of opposite sides is shortened first, then the other pair: each side at both of its ends,
    by `part` of the end's reference length, which is the shorter of the two sides that meet there.
    """
    each = np.arange(len(words))
    sides = np.linalg.norm(np.roll(words, -1, axis=1) - words, axis=2)
    reference = part * np.minimum(sides, np.roll(sides, 1, axis=1))[..., None]
    longer = np.where(sides[:, 0] + sides[:, 2] >= sides[:, 1] + sides[:, 3], 0, 1)
    result = words.copy()
    for first in (longer, 1 - longer):
        for begin in (first, first + 2):
            end = (begin + 1) % CORNERS
            along = result[each, end] - result[each, begin]
            unit = along / np.maximum(np.linalg.norm(along, axis=1, keepdims=True), LEAST)
            result[each, begin] += reference[each, begin] * unit
            result[each, end] -= reference[each, end] * unit
    return result


def _covered(polygon: np.ndarray, shape: tuple[int, int], stride: int) -> tuple[slice, slice, np.ndarray]:
    """Return rows and columns of a map around a polygon [4, 2], and which of their pixels' centres it has."""
    low = np.clip(np.floor(polygon.min(axis=0) / stride), 0, (shape[1], shape[0])).astype(int)
    high = np.clip(np.ceil(polygon.max(axis=0) / stride), 0, (shape[1], shape[0])).astype(int)
    columns, rows = (slice(begin, end) for begin, end in zip(low, high, strict=True))
    x, y = _centres(rows, columns, stride)
    return rows, columns, shapely.contains_xy(shapely.polygons(polygon), *np.broadcast_arrays(x, y))


def _centres(rows: slice, columns: slice, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Return x [1, columns] and y [rows, 1] of the centres of a map's pixels, in pixels of the image."""
    x = (np.arange(columns.start, columns.stop) + 0.5) * stride
    y = (np.arange(rows.start, rows.stop) + 0.5) * stride
    return x[None, :], y[:, None]


def _geometry(frame: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the distances from points to the sides of a rectangle, and its angle, [5, rows, columns]."""
    across, down = frame[1] - frame[0], frame[3] - frame[0]
    width, height = max(np.hypot(*across), LEAST), max(np.hypot(*down), LEAST)
    angle = np.arctan2(across[1], across[0])
    cosine, sine = np.cos(angle), np.sin(angle)
    left = cosine * (x - frame[0, 0]) + sine * (y - frame[0, 1])
    top = cosine * (y - frame[0, 1]) - sine * (x - frame[0, 0])
    distances = (top, width - left, height - top, left)
    return np.stack([*(np.maximum(each, 0) for each in distances), np.broadcast_to(angle, left.shape)])
