"""Work with sets of time: lists of (begin, end), whole numbers of any one unit, in any order.

a    ----   ----------    --
b      ---------   --

union(a)        ----   ----------    --      in order and disjoint
common(a, b)      --   -----   --            in both
without(a, b)   --          ---       --     in a, not in b
"""

from __future__ import annotations

from collections.abc import Iterable

Interval = tuple[int, int]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the intervals in order and disjoint, those that touch or overlap as one, without empty ones."""
    joined: list[Interval] = []
    for begin, end in sorted(each for each in intervals if each[0] < each[1]):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((begin, end))
    return joined


def common(first: Iterable[Interval], second: Iterable[Interval]) -> list[Interval]:
    """Return what is in both sets, in order and disjoint."""
    a, b = union(first), union(second)
    found: list[Interval] = []
    i = j = 0
    while i < len(a) and j < len(b):
        begin, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if begin < end:
            found.append((begin, end))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return found


def without(first: Iterable[Interval], second: Iterable[Interval]) -> list[Interval]:
    """Return what is in the first set and not in the second one, in order and disjoint."""
    left: list[Interval] = []
    holes = union(second)
    next_hole = 0
    for begin, end in union(first):
        while next_hole < len(holes) and holes[next_hole][1] <= begin:
            next_hole += 1
        place = next_hole
        while place < len(holes) and holes[place][0] < end:
            if begin < holes[place][0]:
                left.append((begin, holes[place][0]))
            begin = holes[place][1]
            place += 1
        if begin < end:
            left.append((begin, end))
    return left


def length(intervals: Iterable[Interval]) -> int:
    """Return how long a set of time is; what overlaps counts once."""
    return sum(end - begin for begin, end in union(intervals))
