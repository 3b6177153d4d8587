"""Predict the rows of a table that have no `seconds`, calibrated by those that have."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from src.config.mistakes import ConfigError
from src.predict import memory, what_if
from src.predict.calibrate import Fit, fit, keys
from src.predict.constants import Constants
from src.predict.intervals import Scores, scores
from src.predict.row import parse
from src.predict.step import Parts, Step

LEVEL = 0.8


@dataclass(frozen=True)
class Prediction:
    """The prediction of one row.

    Attributes:
        parts: its seconds.
        low, high: between which a step takes as long, in 80 of 100 cases.
        held: bytes of the device that has most, `None` where they aren't known.
        fits: whether it has that many.
        basis: `calibrated` by steps of such a machine, `measured` on one device, or a `data sheet`.
        note: what else there is to say.
    """

    parts: Parts
    low: float
    high: float
    held: float | None
    fits: bool | None
    basis: str
    note: str


@dataclass(frozen=True)
class Calibration:
    """A fit to measured steps, and how far off it is of such steps."""

    fit: Fit
    scores: Scores

    @classmethod
    def of(cls, steps: Sequence[Step], seed: int) -> Calibration:
        """Calibrate by steps whose rows have `seconds`."""
        found = fit(steps)
        return cls(found, scores(steps, found, seed))

    def predict(self, step: Step, level: float = LEVEL) -> Prediction:
        """Predict a step, with an interval that holds in `level` of cases."""
        parts = self.fit.parts(step)
        width, why = self.scores.width(step, level)
        note = "; ".join(filter(None, (why, uneven(step))))
        held = memory.predicted_bytes(step)
        known = keys(step)[1] in self.scores.known
        return Prediction(
            parts,
            parts.seconds * math.exp(-width),
            parts.seconds * math.exp(width),
            held,
            None if held is None else memory.fits(step, held),
            "calibrated" if known else "data sheet" if step.by_shapes else "measured",
            note,
        )


def predict(
    lines: Sequence[Mapping[str, str]], seed: int = 0, changes: Mapping[str, float] | None = None
) -> list[Prediction | str]:
    """Predict each line of a table, or say why not: it calibrates, or what is wrong with it.

    Args:
        lines: cells by the columns' names.
        seed: of the folds from which intervals are had.
        changes: how many times as fast machines are as they were measured, or are described (`what_if`).
    """
    steps = [_step(line) for line in lines]
    measured = [step for step in steps if isinstance(step, Step) and step.row.seconds is not None]
    calibration = Calibration.of(measured, seed)
    calibration = replace(calibration, fit=what_if.changed(calibration.fit, changes or {}))
    found: list[Prediction | str] = []
    for step in steps:
        if isinstance(step, str):
            found.append(step)
        elif step.row.seconds is not None:
            found.append(f"calibrates, with {len(measured) - 1} others")
        else:
            found.append(calibration.predict(step))
    return found


def uneven(step: Step) -> str:
    """Return a line where micro-batches have no whole number of samples, which no run can have."""
    samples = step.layout.samples
    return (
        ""
        if math.isclose(samples, round(samples), rel_tol=1e-9)
        else f"micro-batches of {samples:.5g} samples"
    )


def _step(line: Mapping[str, str]) -> Step | str:
    try:
        step = Step(parse(line))
        # What a step can't have shows by some constants as by others.
        step.parts(Constants())
    except ConfigError as error:
        return str(error)
    return step
