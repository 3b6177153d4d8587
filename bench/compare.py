"""Ratios of interleaved pairs: median, bootstrap interval, and whether a goal is met."""

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
    """Median ratio of the pairs with its 95 % bootstrap interval."""

    name: str
    ratios: tuple[float, ...]
    goal: float | None

    @property
    def median(self) -> float:
        return median(self.ratios)

    def interval(self) -> tuple[float, float]:
        """95 % percentile bootstrap of the median (Efron & Tibshirani 1993, chapter 13), seeded."""
        generator = random.Random(0)
        medians = sorted(median(generator.choices(self.ratios, k=len(self.ratios))) for _ in range(RESAMPLES))
        return medians[int(0.025 * RESAMPLES)], medians[int(0.975 * RESAMPLES) - 1]

    @property
    def met(self) -> bool | None:
        return None if self.goal is None else self.median >= self.goal - SLACK


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, ...]:
    """Pairwise ours / theirs of the same round."""
    return tuple(a / b for a, b in zip(ours, theirs, strict=True))


def table(comparisons: Sequence[Comparison]) -> str:
    """A Markdown table."""
    lines = ["| comparison | median | 95 % interval | goal | met |", "| --- | --- | --- | --- | --- |"]
    for found in comparisons:
        low, high = found.interval()
        goal = "" if found.goal is None else f"{found.goal:.2f}"
        met = "" if found.met is None else "yes" if found.met else "no"
        lines.append(f"| {found.name} | {found.median:.2f} | {low:.2f} to {high:.2f} | {goal} | {met} |")
    return "\n".join(lines)
