"""Measure how quadrilaterals of any shape overlap."""

from __future__ import annotations

import numpy as np
import shapely


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
