"""Count which words of an image were found, by the protocol of ICDAR's competitions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import shapely

from src.tasks.torch.text_detection.quadrilaterals import intersections, ious, polygons

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
