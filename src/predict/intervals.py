"""Say how far off a prediction may be: conformal intervals, by rows that a fit has not seen.

The error of each measured row is taken of a fit to the others: of a random fold of configurations, and of all
other models (Barber et al. 2021, Predictive Inference with the Jackknife+, CV+, as a quantile of errors
about one prediction). In-sample errors would give intervals that hold far too seldom.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from src.predict.calibrate import Fit, fit, keys
from src.predict.step import Step

FOLDS = 5
MODEL_FOLDS = 6
# Errors, in logarithms, of predictions for machines and models of which nothing was measured: of the
# published tables by what was believed before (docs/predict.md). They stand in while few rows are measured.
PRIOR_SCORES = (0.01, 0.02, 0.03, 0.045, 0.06, 0.075, 0.10, 0.13, 0.18, 0.26)
FEW = 10


@dataclass(frozen=True)
class Scores:
    """Errors of rows that a fit has not seen, and what was measured.

    Attributes:
        alike: where other configurations of the same models were seen.
        apart: where nothing of the model was.
        known: keys of the models and machines that were measured.
    """

    alike: tuple[float, ...]
    apart: tuple[float, ...]
    known: frozenset[tuple[str, str]]

    def width(self, step: Step, level: float) -> tuple[float, str]:
        """Return how far a prediction's logarithm may be off at a level as 0.8, and on what that rests."""
        (model, machine, _), known = keys(step), self.known
        few = "" if len(self.alike) >= FEW else f"{len(self.alike)} rows were measured, which are few"
        found, note = quantile(filled(self.alike), level), few
        if model not in known:
            found = max(found, quantile(filled(self.apart), level))
            note = "nothing was measured of this model"
        if machine not in known:
            found = max(found, quantile(PRIOR_SCORES, level))
            note = "nothing was measured on such a machine"
        return found, note


def scores(steps: Sequence[Step], whole: Fit, seed: int) -> Scores:
    """Take the errors of steps that were measured, each of a fit that has not seen it.

    Args:
        steps: whose rows have `seconds`.
        whole: the fit to all of them, near which the others are looked for.
        seed: of the folds.
    """
    rows = [step.row.model_copy(update={"seconds": None, "memory_bytes": None, "id": None}) for step in steps]
    models = [step.row.family for step in steps]
    generator = np.random.default_rng(seed)
    alike = _left_out(steps, folds([str(row) for row in rows], FOLDS, generator), whole)
    apart = _left_out(steps, folds(models, MODEL_FOLDS, generator), whole)
    return Scores(alike, apart, frozenset(key for step in steps for key in keys(step)))


def folds(groups: Sequence[str], most: int, generator: np.random.Generator) -> list[set[int]]:
    """Spread rows over at most `most` folds, rows of one group in one; fewer than two folds are none."""
    names = sorted(set(groups))
    generator.shuffle(names)
    count = min(most, len(names))
    if count < 2:
        return []
    fold_of = {name: number % count for number, name in enumerate(names)}
    return [{i for i, group in enumerate(groups) if fold_of[group] == fold} for fold in range(count)]


def _left_out(steps: Sequence[Step], folds: Sequence[set[int]], whole: Fit) -> tuple[float, ...]:
    found: list[float] = []
    for fold in folds:
        without = fit([step for i, step in enumerate(steps) if i not in fold], whole)
        found += [log_error(without, steps[i]) for i in sorted(fold)]
    return tuple(found)


def log_error(found: Fit, step: Step) -> float:
    """Return how far a fit's prediction is off a measured step, in logarithms."""
    return abs(found.log_seconds(step) - math.log(step.row.seconds or math.nan))


def filled(errors: Sequence[float]) -> Sequence[float]:
    """Return the errors, with those of published tables where they are few."""
    return errors if len(errors) >= FEW else (*errors, *PRIOR_SCORES)


def quantile(errors: Sequence[float], level: float) -> float:
    """Return the error that `level` of further ones are below; of so few, the greatest, if need be."""
    ordered = sorted(errors)
    return ordered[min(len(ordered), math.ceil((len(ordered) + 1) * level)) - 1]
