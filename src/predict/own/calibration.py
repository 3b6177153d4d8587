"""Fit the constants of predictions from a profile to runs that were measured, and say how far off they are.

As for tables (`src/predict/calibrate.py`), the most probable constants are taken, and a factor near 1 for
each strategy and each model that was seen. Errors are those of runs that a fit has not seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from src.config.run_config import MESH
from src.predict.calibrate import most_probable
from src.predict.intervals import FEW, MODEL_FOLDS, PRIOR_SCORES, filled, folds, quantile
from src.predict.own.constants import PRIORS, Constants
from src.predict.own.steps import OwnStep
from src.predict.step import Parts

# Standard deviations, in logarithms, of the factors.
SPREADS = {"strategy": 0.05, "model": 0.03, "apart": 0.15}
FITTED = tuple(PRIORS)
ALIKE_FOLDS = 8


@dataclass(frozen=True)
class Run:
    """A run that was measured.

    Attributes:
        step: its step.
        seconds: that it took, the median of its runs.
        half_range: half of what these differ by, in seconds.
    """

    step: OwnStep
    seconds: float
    half_range: float = 0.0


@dataclass(frozen=True)
class Fit:
    """A fit of the constants to runs.

    Attributes:
        constants: the fitted ones.
        factors: logarithms of the factors of strategies and models that were measured.
        compute: how many times as fast devices are as they were measured.
    """

    constants: Constants = field(default_factory=Constants)
    factors: Mapping[tuple[str, str], float] = field(default_factory=dict)
    compute: float = 1.0

    @property
    def of_machine(self) -> Constants:
        """Return the constants, with devices that are so many times as fast."""
        return self.constants.changed({"computing": self.constants.computing / self.compute})

    def parts(self, step: OwnStep) -> Parts:
        """Return the predicted seconds of a step, by part."""
        found = step.parts(self.of_machine)
        times = math.exp(sum(self.factors.get(key, 0.0) for key in keys(step)))
        return Parts(*(each * times for each in (found.compute, found.exchange, found.bubble, found.other)))

    def log_seconds(self, step: OwnStep) -> float:
        """Return the logarithm of a step's predicted seconds."""
        return math.log(self.parts(step).seconds)


def strategy_of(step: OwnStep) -> str:
    """Return what a run's strategy is called, with its schedule and where its gradients are summed."""
    config = step.config
    words = [str(config.strategy["name"])]
    if config.cuts:
        words.append(str(config.strategy.get("schedule") or ""))
    elif config.supports.axis == MESH:
        words += [f"{name}={degree}" for name, degree in vars(config.degrees).items() if degree > 1]
    elif "all_reduce" in config.strategy:
        words.append("shared memory" if step.shared_memory else "backend")
    if config.strategy.get("predicted"):
        words += [str(config.strategy[key]) for key in ("mode", "sync", "loop") if key in config.strategy]
    if config.strategy.get("compression", "none") != "none":
        words.append(config.strategy["compression"])
    if config.hardware.speeds or config.batch_shares != "equal":
        words.append("unequal")
    return " ".join(filter(None, words))


def keys(step: OwnStep) -> tuple[tuple[str, str], ...]:
    """Return the keys of the factors that a step has."""
    model = str(step.config.model["name"])
    framework = "" if step.config.framework == "torch" else f" in {step.config.framework}"
    return ("strategy", strategy_of(step)), ("model", f"{model}{framework}")


def fit(runs: Sequence[Run], start: Fit | None = None) -> Fit:
    """Fit the constants to runs; without any, return what is believed of them."""
    if not runs:
        return Fit()
    effects = sorted({key for run in runs for key in keys(run.step)})
    # A device that computes what another strategy's does may be further off.
    apart = {key for run in runs if run.step.config.strategy.get("predicted") for key in keys(run.step)[:1]}
    own = [SPREADS["apart" if key in apart else key[0]] for key in effects]
    spreads = np.array([PRIORS[name].spread for name in FITTED] + own)
    measured = np.array([math.log(run.seconds) for run in runs])

    def gaps(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
        found = _at(values, effects)
        return np.array([found.log_seconds(runs[i].step) for i in rows.tolist()]) - measured[rows]

    moved = [np.array([i for i, run in enumerate(runs) if name in run.step.constants]) for name in FITTED]
    moved += [np.array([i for i, run in enumerate(runs) if key in keys(run.step)]) for key in effects]
    return _at(most_probable(gaps, spreads, moved, _place(start or Fit(), effects)), effects)


def _at(values: np.ndarray, effects: Sequence[tuple[str, str]]) -> Fit:
    """Return the fit at a place: logarithms of constants over their medians, then of the factors."""
    count = len(FITTED)
    found = {
        name: PRIORS[name].median * math.exp(value)
        for name, value in zip(FITTED, values[:count], strict=True)
    }
    return Fit(Constants().changed(found), dict(zip(effects, map(float, values[count:]), strict=True)))


def _place(start: Fit, effects: Sequence[tuple[str, str]]) -> np.ndarray:
    found = [math.log(getattr(start.constants, name) / PRIORS[name].median) for name in FITTED]
    return np.array(found + [start.factors.get(key, 0.0) for key in effects])


@dataclass(frozen=True)
class Scores:
    """Errors, in logarithms, of runs that a fit has not seen, and what was measured.

    Attributes:
        alike: where other runs of the same strategy and model were seen.
        apart: where none of the strategy, or none of the model, were.
        known: keys of what was measured.
        count: how many runs were.
    """

    alike: tuple[float, ...] = ()
    apart: tuple[float, ...] = ()
    known: frozenset[tuple[str, str]] = frozenset()
    count: int = 0

    def width(self, step: OwnStep, level: float) -> tuple[float, str]:
        """Return how far a prediction's logarithm may be off at a level as 0.8, and on what that rests."""
        if not self.known:
            return quantile(PRIOR_SCORES, level), "no run was measured"
        few = "" if len(self.alike) >= FEW else f"{self.count} runs were measured, which are few"
        found = quantile(filled(self.alike), level)
        missing = [f"{kind} {name}" for kind, name in keys(step) if (kind, name) not in self.known]
        if missing:
            found = max(found, quantile(filled(self.apart), level))
        return found, "; ".join(filter(None, [few, *(f"no run was measured of {each}" for each in missing)]))


def scores(runs: Sequence[Run], whole: Fit, seed: int) -> Scores:
    """Take the errors of runs, each of a fit that has not seen it; folds are drawn by a seed."""
    generator = np.random.default_rng(seed)
    names = [repr((keys(run.step), run.step.config.batch, run.step.config.microbatches)) for run in runs]
    alike = left_out(runs, folds(names, ALIKE_FOLDS, generator), whole)
    apart = [
        error
        for place in range(2)
        for error in left_out(
            runs, folds([keys(run.step)[place][1] for run in runs], MODEL_FOLDS, generator), whole
        )
    ]
    known = frozenset(key for run in runs for key in keys(run.step))
    return Scores(tuple(alike), tuple(apart), known, len(runs))


def left_out(runs: Sequence[Run], parts: Sequence[set[int]], whole: Fit) -> list[float]:
    """Return the errors of runs, part by part, of fits to the other parts' runs."""
    found: list[float] = []
    for part in parts:
        without = fit([run for i, run in enumerate(runs) if i not in part], whole)
        found += [abs(without.log_seconds(runs[i].step) - math.log(runs[i].seconds)) for i in sorted(part)]
    return found
