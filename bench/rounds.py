"""Run the rounds of a bench, and repeat those in which a run of Scaleguide's was disturbed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from bench import runs

T = TypeVar("T")
SPARE = 3


class Rounds:
    """Runs rounds, and repeats disturbed ones, `spare` times at most in all.

    A plain script's contention isn't measured: a round is repeated for Scaleguide's runs in it alone, which
    are on the same cores a little before and after. What a round has measured plays no part in that.

    Attributes:
        repeated: number of rounds that were run again.
        kept: number of rounds that were disturbed, and count for want of repetitions.
    """

    def __init__(self, spare: int = SPARE) -> None:
        """Prepare to run rounds, of which `spare` may be repeated."""
        self.repeated = 0
        self.kept = 0
        self._spare = spare

    def run(self, count: int, measure: Callable[[int], T]) -> list[T]:
        """Return what `measure` returns for each of `count` rounds; it is given the round's number from 0."""
        results = []
        for number in range(count):
            while True:
                runs.DISTURBED.clear()
                result = measure(number)
                if not runs.DISTURBED:
                    break
                if self.repeated == self._spare:
                    self.kept += 1
                    break
                self.repeated += 1
                causes = ", ".join(runs.DISTURBED)
                print(f"round {number + 1} is repeated: {causes}", file=sys.stderr, flush=True)
            results.append(result)
        return results

    def note(self) -> str:
        """Return a sentence on how many rounds were repeated, and how many disturbed ones count."""
        kept = f"; {self.kept} further one(s) count all the same" if self.kept else ""
        return f"{self.repeated} round(s) were repeated because a run was disturbed{kept}."


def collect(rounds: Sequence[Mapping[str, T]]) -> dict[str, list[T]]:
    """Return the measurements of all rounds by name, each a list in the order of the rounds."""
    return {name: [each[name] for each in rounds] for name in rounds[0]} if rounds else {}
