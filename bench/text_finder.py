"""Find words in an image without learning: by a threshold, connected pixels, and gaps between letters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import shapely
from PIL import Image
from scipy import ndimage
from scipy.sparse import csgraph

from src.tasks.torch.text_detection.matching import intersections

# Pixels that touch at a corner are connected.
NEIGHBOURS = np.ones((3, 3), dtype=bool)
# Pixels of a component's height and width within which it may be a letter.
LEAST, MOST = 3, 128


@dataclass(frozen=True)
class Parameters:
    """The parameters that are searched for.

    Attributes:
        window: side in pixels of the square whose mean a pixel is compared with; 0 for Otsu's threshold.
        offset: grey levels by which a pixel differs from that mean at least; left aside by Otsu's threshold.
        lowest: least height of a letter, in pixels.
        highest: greatest height of a letter, in pixels.
        widest: greatest width of a letter, over its height.
        fullest: greatest share of its bounding box that a letter fills.
        gap: greatest gap between two letters of a word, over the mean of their heights.
        ratio: greatest ratio of their heights.
        shift: greatest vertical distance of their centres, over the mean of their heights.
        difference: greatest difference of their mean grey levels.
        letters: least number of letters of a word.
        margin: pixels by which a word's rectangle is widened at each side.
    """

    window: int
    offset: int
    lowest: int
    highest: int
    widest: float
    fullest: float
    gap: float
    ratio: float
    shift: float
    difference: float
    letters: int
    margin: float


@dataclass(frozen=True)
class Components:
    """The connected pixels of an image that may be letters; arrays have one row each.

    Attributes:
        boxes: left, top, right and bottom in pixels [n, 4].
        fills: shares of their boxes that they fill [n].
        greys: their mean grey levels [n].
        light: which ones are lighter than what is around them [n].
        hulls: their convex hulls [n].
    """

    boxes: np.ndarray
    fills: np.ndarray
    greys: np.ndarray
    light: np.ndarray
    hulls: np.ndarray


def candidate_letters(image: np.ndarray, window: int, offset: int) -> Components:
    """Return what is dark or light in an image [height, width, 3], by the threshold of the parameters."""
    levels = np.asarray(Image.fromarray(image).convert("L"))
    grey = levels.astype(np.int16)
    if window:
        around = ndimage.uniform_filter(grey.astype(np.float32), window)
        dark, light = grey < around - offset, grey > around + offset
    else:
        light = grey > otsu(levels)
        dark = ~light
    first, second = _components(dark, grey, light=False), _components(light, grey, light=True)
    return Components(
        *(np.concatenate(pair) for pair in zip(vars(first).values(), vars(second).values(), strict=True))
    )


def otsu(grey: np.ndarray) -> int:
    """Return the grey level above which a pixel of uint8 values is light (Otsu 1979).

    It is the one that leaves the least variance within dark and light pixels.
    """
    counts = np.bincount(grey.ravel(), minlength=256)
    levels = np.arange(256)
    below = counts.cumsum()
    above = below[-1] - below
    sums = (counts * levels).cumsum()
    with np.errstate(divide="ignore", invalid="ignore"):
        between = below * above * (sums / below - (sums[-1] - sums) / above) ** 2
    return int(np.nan_to_num(between).argmax())


def _components(mask: np.ndarray, grey: np.ndarray, *, light: bool) -> Components:
    labels, _ = ndimage.label(mask, NEIGHBOURS)
    boxes, fills, greys, outlines = [], [], [], []
    for number, (rows, columns) in enumerate(ndimage.find_objects(labels), start=1):
        height, width = rows.stop - rows.start, columns.stop - columns.start
        if not (LEAST <= height <= MOST and width <= MOST):
            continue
        own = labels[rows, columns] == number
        pixels = own.sum()
        boxes.append((columns.start, rows.start, columns.stop, rows.stop))
        fills.append(pixels / (height * width))
        greys.append(grey[rows, columns][own].sum() / pixels)
        outlines.append(_outline(own) + np.array([columns.start, rows.start]))
    return Components(
        np.array(boxes, dtype=np.float64).reshape(-1, 4),
        np.array(fills),
        np.array(greys),
        np.full(len(boxes), light),
        shapely.convex_hull(np.array([shapely.multipoints(points) for points in outlines], dtype=object)),
    )


def _outline(mask: np.ndarray) -> np.ndarray:
    """Return the corners (x, y) [points, 2] of the first and last pixel of each row of a mask."""
    rows = np.flatnonzero(mask.any(axis=1))
    first = mask[rows].argmax(axis=1)
    last = mask.shape[1] - mask[rows, ::-1].argmax(axis=1)
    x = np.concatenate([first, first, last, last])
    return np.stack([x, np.concatenate([rows, rows + 1, rows, rows + 1])], axis=1)


def find(components: Components, parameters: Parameters) -> np.ndarray:
    """Return the corners [k, 4, 2] of the words that letters among components make."""
    widths, heights = (components.boxes[:, 2:] - components.boxes[:, :2]).T
    chosen = np.flatnonzero(
        (heights >= parameters.lowest)
        & (heights <= parameters.highest)
        & (widths <= parameters.widest * heights)
        & (components.fills <= parameters.fullest)
    )
    _, word_of = csgraph.connected_components(_joined(components, chosen, parameters), directed=False)
    enough = np.bincount(word_of, minlength=1)[word_of] >= parameters.letters
    order = np.argsort(word_of[enough], kind="stable")
    _, numbers = np.unique(word_of[enough][order], return_inverse=True)
    words = shapely.geometrycollections(components.hulls[chosen][enough][order], indices=numbers)
    rectangles = shapely.buffer(shapely.oriented_envelope(words), parameters.margin, join_style="mitre")
    return shapely.get_coordinates(_without_inner(rectangles)).reshape(-1, 5, 2)[:, :4]


def _joined(components: Components, chosen: np.ndarray, parameters: Parameters) -> np.ndarray:
    """Return which pairs [n, n] of the chosen components [n] are letters of one word, side by side."""
    left, top, right, bottom = components.boxes[chosen].T
    height, grey, light = bottom - top, components.greys[chosen], components.light[chosen]
    centre = (top + bottom) / 2
    mean = (height[:, None] + height) / 2
    gaps = np.maximum(left[:, None], left) - np.minimum(right[:, None], right)
    return (
        (gaps <= parameters.gap * mean)
        & (np.abs(centre[:, None] - centre) <= parameters.shift * mean)
        & (np.maximum(height[:, None], height) <= parameters.ratio * np.minimum(height[:, None], height))
        & (np.abs(grey[:, None] - grey) <= parameters.difference)
        & (light[:, None] == light)
    )


def _without_inner(rectangles: np.ndarray) -> np.ndarray:
    """Return rectangles but for those that lie by more than half in a larger one, as holes of letters do."""
    areas = shapely.area(rectangles)
    inside = intersections(rectangles, rectangles) > areas[:, None] / 2
    return rectangles[~(inside & (areas[:, None] < areas)).any(axis=1)]
