"""Find the Pareto front of two figures of which less is better."""

from __future__ import annotations

from collections.abc import Iterable

Point = tuple[float, float]


def pareto(points: Iterable[Point]) -> list[Point]:
    """Return the points of which no other one has less of one figure and no more of the other, in order."""
    best: list[Point] = []
    for point in sorted(set(points)):
        if not best or point[1] < best[-1][1]:
            best.append(point)
    return best
