"""Add up what of a rank's tensors is live over a step, by part, and find when that is most."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from src.measure.live_bytes import PARTS

MOMENTS = 240


@dataclass(frozen=True)
class LiveBytes:
    """The bytes of live tensors over a step.

    Attributes:
        seconds: since the step's beginning [moments]; of a predicted step the number of a moment.
        sizes: bytes by part, in the order of `PARTS`, [moments, parts].
    """

    seconds: np.ndarray
    sizes: np.ndarray

    @classmethod
    def of(cls, changes: Iterable[tuple[float, str, int]]) -> LiveBytes:
        """Return what is live after each of some changes, which are (moment, part, bytes), one at least."""
        rows = list(changes)
        moments = np.array([moment for moment, _, _ in rows])
        steps = np.zeros((len(rows), len(PARTS)))
        places = [PARTS.index(part) for _, part, _ in rows]
        steps[np.arange(len(rows)), places] = [size for _, _, size in rows]
        return cls(moments - moments[0], steps.cumsum(axis=0))

    def since(self, change: int) -> LiveBytes:
        """Return what is live from before the change of this number on, the first of which is 0."""
        first = max(0, change - 1)
        return LiveBytes(self.seconds[first:] - self.seconds[first], self.sizes[first:])

    def most(self) -> dict[str, int]:
        """Return the bytes by part at the moment when most are live."""
        fullest = self.sizes[self.sizes.sum(axis=1).argmax()]
        return dict(zip(PARTS, fullest.round().astype(int).tolist(), strict=True))

    def thinned(self, moments: int = MOMENTS) -> LiveBytes:
        """Return at most so many moments: of each stretch of time the one when most are live."""
        if len(self.seconds) <= moments:
            return self
        totals, end = self.sizes.sum(axis=1), self.seconds[-1] or 1.0
        stretches = np.minimum((self.seconds / end * moments).astype(int), moments - 1)
        kept = [
            int(own[totals[own].argmax()])
            for own in (np.flatnonzero(stretches == each) for each in np.unique(stretches))
        ]
        return LiveBytes(self.seconds[kept], self.sizes[kept])

    def rows(self) -> list[list[float]]:
        """Return the seconds and the bytes by part of each moment."""
        sizes = self.sizes.round().astype(int).tolist()
        return [[round(moment, 6), *own] for moment, own in zip(self.seconds.tolist(), sizes, strict=True)]
