"""Count which words of an image were found, by the protocol of ICDAR's competitions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import shapely

# Shares of areas, which are to be exceeded.
IOU, IN_IGNORED = 0.5, 0.5


class Counts(NamedTuple):
    """The counts of an image, or of several together: what precision and recall are made of.

    Attributes:
        matched: number of words that were found.
        found: number of detections, but for those of ignored words.
        words: number of words, but for ignored ones.
    """

    matched: int
    found: int
    words: int


def count(found: np.ndarray, words: np.ndarray, ignored: np.ndarray) -> Counts:
    """Return what an image adds to the counts.

    This is the protocol of ICDAR's challenge on incidental scene text (Karatzas et al. 2015;
    `script.py` of challenge 4, task 1, at rrc.cvc.uab.es). A detection that has more than half of its own
    area in one ignored word is left out. Then each word that isn't ignored, in their order, takes the first
    detection, in their order, that is still free and whose intersection over union with it is above 0.5.
    Unlike there, coordinates aren't cut to integers, because the words are those of a resized image.

    Args:
        found: corners [n, 4, 2] of the detections, in turn.
        words: corners [m, 4, 2] of the words, in turn and without padding.
        ignored: flags [m] of the words that are ignored.
    """
    is_ignored = ignored.astype(bool)
    detections, truths = polygons(found), polygons(words)
    inside = intersections(detections, truths[is_ignored])
    # One without an area is inside of none.
    counting = detections[~(inside > IN_IGNORED * shapely.area(detections)[:, None]).any(axis=1)]
    wanted = truths[~is_ignored]
    free = np.ones(len(counting), dtype=bool)
    for near in ious(wanted, counting) > IOU:
        free[np.flatnonzero(near & free)[:1]] = False
    return Counts(int((~free).sum()), len(counting), len(wanted))


def polygons(corners: np.ndarray) -> np.ndarray:
    """Return the polygons [n] (shapely's, as objects) of corners [n, 4, 2], in turn.

    Where edges cross, or the corners have no area, it is their convex hull, which may be a line or a point;
    where a corner isn't finite, it is empty.
    """
    made = np.full(len(corners), shapely.Polygon(), dtype=object)
    finite = np.isfinite(corners).all(axis=(1, 2))
    made[finite] = shapely.polygons(corners[finite].astype(np.float64))
    crossing = finite & ~shapely.is_valid(made)
    made[crossing] = shapely.convex_hull(made[crossing])
    return made


def intersections(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the areas [n, m] that polygons [n] share with polygons [m], in squared units of the corners."""
    areas = np.zeros((len(first), len(second)))
    rows, columns = shapely.STRtree(second).query(first, predicate="intersects")
    areas[rows, columns] = shapely.area(shapely.intersection(first[rows], second[columns]))
    return areas


def ious(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the intersections over unions [n, m] of polygons [n] and [m]; 0 of two that have no area."""
    shared = intersections(first, second)
    united = shapely.area(first)[:, None] + shapely.area(second) - shared
    return np.divide(shared, united, out=np.zeros_like(shared), where=united > 0)
