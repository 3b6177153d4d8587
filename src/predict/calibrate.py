"""Fit the constants of predictions to steps that were measured.

The constants that are most probable are taken: logarithms of predicted and measured seconds differ by little,
with outliers, and each constant lies near what was believed of it (`PRIORS`). What a model and a machine have
of their own is a factor each, near 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import least_squares

from src.predict.constants import PRIORS, Constants
from src.predict.step import Parts, Predictable, Step

# Standard deviations, in logarithms: of a measured step from the right prediction, and of the factors, by
# what they are of: how long a model and a machine compute, and how long a machine sums gradients.
NOISE = 0.03
SPREADS = {"model": 0.04, "machine": 0.06, "summing": 0.5}
# By which slopes are taken.
STEP = 1e-5
FITTED = tuple(name for name, prior in PRIORS.items() if not prior.pinned)


@dataclass(frozen=True)
class Fit:
    """A fit of the constants to measured steps.

    Attributes:
        constants: the fitted ones.
        factors: logarithms of the factors of each model and machine that was measured.
        computing: how many times as long all of them compute.
    """

    constants: Constants = field(default_factory=Constants)
    factors: Mapping[tuple[str, str], float] = field(default_factory=dict)
    computing: float = 1.0

    def parts(self, step: Predictable) -> Parts:
        """Return the predicted seconds of a step, by part."""
        model, machine_of, summing = (self.factors.get(key, 0.0) for key in keys(step))
        return step.parts(self.constants, self.computing * math.exp(model + machine_of), math.exp(summing))

    def log_seconds(self, step: Step) -> float:
        """Return the logarithm of a step's predicted seconds."""
        return math.log(self.parts(step).seconds)


def machine(step: Predictable) -> str:
    """Return what tells a step's machine, and the software on it, from others."""
    row, plan = step.row, step.layout
    between = row.network if plan.nodes > 1 else None
    per_node = row.devices_per_node or plan.device.node
    words = (row.device, per_node, between, row.framework, row.precision, row.exchange, row.reduce_on)
    return ", ".join(map(str, words))


def keys(step: Predictable) -> tuple[tuple[str, str], ...]:
    """Return the keys of the factors that a step has, in the order of `SPREADS`."""
    return ("model", step.row.family), ("machine", machine(step)), ("summing", machine(step))


def fit(steps: Sequence[Step], start: Fit | None = None) -> Fit:
    """Fit the constants to steps whose rows have `seconds`; without any, return what is believed of them.

    Args:
        steps: that were measured.
        start: an earlier fit, from which to go on.
    """
    if not steps:
        return Fit()
    effects = sorted({key for step in steps for key in keys(step)})
    spreads = np.array([PRIORS[name].spread for name in FITTED] + [SPREADS[kind] for kind, _ in effects])
    measured = np.array([math.log(step.row.seconds or math.nan) for step in steps])

    # A factor moves the steps that have it alone.
    moved = [np.arange(len(steps))] * len(FITTED)
    moved += [np.array([i for i, step in enumerate(steps) if key in keys(step)]) for key in effects]

    def gaps(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
        found = _at(values, effects)
        return np.array([found.log_seconds(steps[i]) for i in rows.tolist()]) - measured[rows]

    first = np.zeros(len(spreads)) if start is None else _place(start, effects)
    return _at(most_probable(gaps, spreads, moved, first), effects)


def most_probable(
    gaps: Callable[[np.ndarray, np.ndarray], np.ndarray],
    spreads: np.ndarray,
    moved: Sequence[np.ndarray],
    first: np.ndarray,
) -> np.ndarray:
    """Return the most probable values [values], each of which is near 0 unless rows tell otherwise.

    Args:
        gaps: from values and the numbers of rows, how far predicted logarithms are from measured ones.
        spreads: standard deviations of the values before rows are seen.
        moved: of each value, the rows that depend on it; all rows depend on the first value.
        first: from where to look.
    """
    every_row = np.arange(1 + max(int(rows.max(initial=0)) for rows in moved))

    def residuals(place: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return _robust(gaps(place * spreads, rows) / NOISE)

    def every(place: np.ndarray) -> np.ndarray:
        return np.concatenate([residuals(place, every_row), place])

    def slopes(place: np.ndarray) -> np.ndarray:
        here, found = residuals(place, every_row), np.zeros((len(every_row), len(place)))
        for column, rows in enumerate(moved):
            if len(rows):
                there = place.copy()
                there[column] += STEP
                found[rows, column] = (residuals(there, rows) - here[rows]) / STEP
        return np.concatenate([found, np.eye(len(place))])

    solved = least_squares(every, first / spreads, jac=slopes, max_nfev=25, xtol=1e-4, ftol=1e-4)
    values: np.ndarray = solved.x * spreads
    return values


def _at(logarithms: np.ndarray, effects: Sequence[tuple[str, str]]) -> Fit:
    """Return the fit at a place: logarithms of constants over their medians, then of the factors."""
    count = len(FITTED)
    values = {
        name: PRIORS[name].median * math.exp(value)
        for name, value in zip(FITTED, logarithms[:count], strict=True)
    }
    factors = dict(zip(effects, map(float, logarithms[count:]), strict=True))
    return Fit(Constants().changed(values), factors)


def _place(start: Fit, effects: Iterable[tuple[str, str]]) -> np.ndarray:
    found = [math.log(getattr(start.constants, name) / PRIORS[name].median) for name in FITTED]
    return np.array(found + [start.factors.get(key, 0.0) for key in effects])


def _robust(gaps: np.ndarray) -> np.ndarray:
    """Return residuals whose squares grow as their size does, beyond one (pseudo-Huber)."""
    return gaps * np.sqrt(2 / (np.sqrt(1 + gaps**2) + 1))
