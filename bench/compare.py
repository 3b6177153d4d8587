"""Compare interleaved pairs of measurements: median ratio, bootstrap interval, and whether a goal is met."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

RESAMPLES = 2000
# A goal is met when the median is at most this far below it.
SLACK = 0.03


@dataclass(frozen=True)
class Comparison:
    """The ratios of pairs of measurements, a pair a round, and the goal for their median, if there is one."""

    name: str
    ratios: tuple[float, ...]
    goal: float | None

    @property
    def median(self) -> float:
        """Return the median ratio."""
        return median(self.ratios)

    def interval(self) -> tuple[float, float]:
        """Return both ends of the median ratio's 95 % interval, by a seeded percentile bootstrap.

        Source: Efron & Tibshirani 1993, chapter 13.
        """
        generator = random.Random(0)
        medians = sorted(median(generator.choices(self.ratios, k=len(self.ratios))) for _ in range(RESAMPLES))
        return medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES) - 1]

    @property
    def met(self) -> bool | None:
        """Return whether the median ratio reaches the goal less `SLACK`, `None` without a goal."""
        return None if self.goal is None else self.median >= self.goal - SLACK


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> tuple[float, ...]:
    """Return the ratio of each round's two measurements.

    Raises ValueError where the two sequences differ in length.
    """
    return tuple(a / b for a, b in zip(numerators, denominators, strict=True))


def table(comparisons: Sequence[Comparison]) -> str:
    """Return a Markdown table with a line for each comparison."""
    lines = ["| comparison | median | 95 % interval | goal | met |", "| --- | --- | --- | --- | --- |"]
    for comparison in comparisons:
        low, high = comparison.interval()
        goal = "" if comparison.goal is None else f"{comparison.goal:.2f}"
        met = "" if comparison.met is None else "yes" if comparison.met else "no"
        interval = f"{low:.2f} to {high:.2f}"
        lines.append(f"| {comparison.name} | {comparison.median:.2f} | {interval} | {goal} | {met} |")
    return "\n".join(lines)
