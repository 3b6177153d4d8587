"""Choose which operations are computed again for their backward passes, for so much memory at least cost.

Operations that follow each other and are computed again together keep what enters the first of them instead
of what each saves (Chen 2016, Training Deep Nets with Sublinear Memory Cost). Which of them pay depends on
what they save and on what they take (Korthikanti 2022, Reducing Activation Recomputation in Large Transformer
Models, section 5), so here both are given by operation.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

# Boundaries at which operations that are computed again may begin or end, sizes of the largest such run that
# are tried, and sums of so many chosen ones that are kept at each boundary.
PLACES, SIZES, KEPT = 96, 48, 64


@dataclass(frozen=True)
class Passes:
    """The forward passes of a device's operations, of one micro-batch each, in order.

    Attributes:
        seconds: of each operation [n].
        saved: bytes that autograd saves of each operation [n].
        entering: bytes that are live before each operation [n].
        held: micro-batches whose saved tensors there are at once [n].
        starts: the places at which a stage begins, 0 among them.
    """

    seconds: np.ndarray
    saved: np.ndarray
    entering: np.ndarray
    held: np.ndarray
    starts: Collection[int] = (0,)

    def bytes(self, again: Collection[tuple[int, int]] = ()) -> float:
        """Return the bytes of saved tensors at their most where the runs (start, stop) are computed again."""
        kept = np.ones(len(self.saved), dtype=bool)
        for start, stop in again:
            kept[start:stop] = False
        entering = sum(self.held[start] * self.entering[start] for start, _ in again)
        largest = max((self.saved[start:stop].sum() for start, stop in again), default=0.0)
        return float((self.held * self.saved)[kept].sum() + entering + largest)


def least(passes: Passes, room: float) -> list[tuple[int, int]] | None:
    """Return the runs of operations (start, stop) that take least to compute again, so that the rest fits.

    A run lies within a stage. One micro-batch's run is there as a whole while it goes backward, besides what
    is kept. Of long models some boundaries alone are looked at, and where sums are many some of them.

    Args:
        passes: of the device's operations.
        room: bytes for saved tensors.

    Returns:
        The runs, in order; `None` where no choice fits.
    """
    if passes.bytes() <= room:
        return []
    places = _places(passes)
    sums = np.concatenate([[0.0], np.cumsum(passes.saved)])[places]
    sizes = np.unique(sums[None, :] - sums[:, None])
    sizes = sizes[(sizes > 0) & (sizes <= room)]
    if len(sizes) > SIZES:
        sizes = sizes[np.linspace(0, len(sizes) - 1, SIZES).round().astype(int)]
    best: tuple[float, list[tuple[int, int]]] | None = None
    for largest in sizes:
        found = _within(passes, places, float(largest), room - float(largest))
        if found is not None and (best is None or found[0] < best[0]):
            best = found
    return None if best is None else best[1]


def _within(
    passes: Passes, places: np.ndarray, largest: float, room: float
) -> tuple[float, list[tuple[int, int]]] | None:
    """Return the least seconds, and the runs of at most `largest` saved bytes for which the rest fits."""
    seconds = np.concatenate([[0.0], np.cumsum(passes.seconds)])[places]
    saved = np.concatenate([[0.0], np.cumsum(passes.saved)])[places]
    kept = np.concatenate([[0.0], np.cumsum(passes.held * passes.saved)])[places]
    # By place: bytes and seconds of choices up to there, and where each came from: a place, a choice of it,
    # and whether what lies between is computed again.
    known: list[tuple[np.ndarray, ...]] = [tuple(np.zeros(1) for _ in range(5))]
    begun = 0
    for number in range(1, len(places)):
        before = known[number - 1]
        options = [(before[0] + kept[number] - kept[number - 1], before[1], number - 1, 0.0)]
        if places[number - 1] in passes.starts:
            begun = number - 1
        for start in range(begun, number):
            if 0 < saved[number] - saved[start] <= largest:
                place, choices = places[start], known[start]
                added = passes.held[place] * passes.entering[place]
                options.append(
                    (choices[0] + added, choices[1] + seconds[number] - seconds[start], start, 1.0)
                )
        rows = np.concatenate(
            [
                np.stack(
                    [size, taken, np.full(len(size), start), np.arange(len(size)), np.full(len(size), again)]
                )
                for size, taken, start, again in options
            ],
            axis=1,
        )
        rows = _best(rows[:, rows[0] <= room])
        if not rows.shape[1]:
            return None
        known.append(tuple(rows))
    chosen = int(known[-1][1].argmin())
    taken, runs, number = float(known[-1][1][chosen]), list[tuple[int, int]](), len(places) - 1
    while number:
        _, _, starts, choices, again = (each[chosen] for each in known[number])
        if again:
            runs.append((int(places[int(starts)]), int(places[number])))
        number, chosen = int(starts), int(choices)
    return taken, runs[::-1]


def _best(rows: np.ndarray) -> np.ndarray:
    """Return the choices [5, choices] that no other one beats in bytes and seconds, `KEPT` at most."""
    rows = rows[:, np.lexsort((rows[1], rows[0]))]
    earlier = np.concatenate([[np.inf], np.minimum.accumulate(rows[1])[:-1]])
    rows = rows[:, rows[1] < earlier]
    if rows.shape[1] > KEPT:
        rows = rows[:, np.linspace(0, rows.shape[1] - 1, KEPT).round().astype(int)]
    return rows


def _places(passes: Passes) -> np.ndarray:
    """Return the boundaries that are looked at: in long models those at which least enters."""
    count = len(passes.saved)
    if count < PLACES:
        return np.arange(count + 1)
    parts = np.array_split(np.arange(count), PLACES - len(passes.starts))
    cheap = {int(part[passes.entering[part].argmin()]) for part in parts if len(part)}
    return np.array(sorted({0, count, *passes.starts, *cheap}))
