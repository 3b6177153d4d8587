"""Read the steps that a training needs to reach its target from the runs of a study of the same training."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from src.config import Config, ConfigError
from src.recommend.candidate import LEVEL, Target
from src.recommend.words import number
from src.report import steps_to_target, study
from src.report.batch_curve import BatchCurve
from src.report.runs import StudyRun
from src.report.steps_to_target import Curve, Tried

# How many times as many samples as expected a run may see before it ends without its target.
SLACK = 2.0
# How work is divided changes no step of a synchronous strategy.
DIVIDED = ("strategy", "workers", "scaling", "microbatches")


@dataclass(frozen=True)
class Evidence:
    """The steps to a target as the runs of a study have them.

    Attributes:
        folder: of the study.
        accuracy: the target.
        curve: the runs of the same training.
        fit: to these.
        samples: of an epoch.
    """

    folder: Path
    accuracy: float
    curve: Curve
    fit: BatchCurve
    samples: int

    def target(self, batch: int) -> Target:
        """Return the steps with a batch."""
        return Target(self.fit, self.fit.at(batch, LEVEL))

    def untold(self, batch: int) -> str:
        """Return why the steps with a batch aren't known though runs had it; nothing where they are."""
        tried = self.curve.best.get(batch)
        if tried is None or None not in tried.steps:
            return ""
        return (
            f"batch={batch}: {len(tried.reached)} of {len(tried.steps)} runs with it in {self.folder} "
            f"reached accuracy {self.accuracy:g}, so its steps to there aren't known"
        )

    @property
    def batches(self) -> list[int]:
        """Return the batches with which every run reached the target, in order."""
        return sorted({run.batch for run in self.fit.runs})

    def rate(self, batch: int) -> float:
        """Return the learning rate for a batch: the best one, and between batches one on a straight line.

        Both axes are logarithmic. Beyond the batches that were measured it is that of the nearest one.
        """
        known = self.batches
        rates = [math.log(self.curve.best[each].rate) for each in known]
        return float(f"{math.exp(np.interp(math.log(batch), np.log(known), rates)):.3g}")

    def words(self, batch: int, given: Sequence[str]) -> list[str]:
        """Return the words with which a run ends at the target, but for those of keys that were given."""
        keys = {word.partition("=")[0] for word in given}
        own = {
            "target_accuracy": f"{self.accuracy:g}",
            "stop_at_target": "true",
            "evaluate_every": str(self._every(batch)),
            "optimizer.lr": f"{self.rate(batch):g}",
        }
        if warmup := self._nearest(batch).warmup_steps:
            own["optimizer.warmup_steps"] = str(warmup)
        if self._first.get("optimizer.schedule") in (None, "constant"):
            # Another schedule depends on the epochs, which are then those of the study.
            own["epochs"] = str(math.ceil(SLACK * self.target(batch).steps.high * batch / self.samples))
        return [f"{key}={value}" for key, value in own.items() if key not in keys]

    @property
    def _first(self) -> StudyRun:
        """Return a run of the study."""
        return self.curve.tried[0].runs[0]

    def _nearest(self, batch: int) -> Tried:
        """Return what was best with the nearest of the batches with which every run reached the target."""
        return self.curve.best[min(self.batches, key=lambda known: abs(math.log(known / batch)))]

    def _every(self, batch: int) -> int:
        """Return after how many steps to look for the target, by the samples with the nearest batch."""
        nearest = min(self.fit.runs, key=lambda run: abs(math.log(run.batch / batch)))
        return max(1, round((nearest.every or nearest.steps) * nearest.batch / batch))

    def sentence(self, batch: int, *, divided: bool) -> str:
        """Say on what the steps with a batch rest, which may be divided into parts."""
        best = self.curve.best
        counts = [len(best[each].runs) for each in self.batches]
        seeds = f"{max(counts)} seed{'s'[: max(counts) > 1]}"
        seeds = seeds if min(counts) == max(counts) else f"{min(counts)} to {seeds}"
        target = self.target(batch)
        steps = target.steps
        said = (
            f"It reaches accuracy {self.accuracy:g} in {number(steps.median)} steps ({number(steps.low)} to "
            f"{number(steps.high)}), by {len(self.fit.runs)} runs with batches {self.batches[0]} to "
            f"{self.batches[-1]}, {seeds} each, in {self.folder}"
        )
        if steps.extrapolated:
            said += f"; batch {batch} is outside of these, and its steps are the curve's alone"
        if divided and self._first.environment.get("batch_statistics"):
            said += (
                "; its BatchNorm takes the mean over a device's part of a batch, of which these runs, with "
                "whole ones, don't tell"
            )
        return f"{said}."


def read(folder: Path, config: Config, samples: int) -> Evidence:
    """Read a study's runs of the same training as a configured one, of so many samples an epoch.

    Raises:
        ConfigError: where there are none, with what differs.
    """
    word = f"steps_from={folder}"
    if not (folder / "runs").is_dir():
        raise ConfigError(f"{word}: must be the folder of a study, as results/batches_to_target")
    found = study.load(study.of_folder(folder), folder)
    curves = steps_to_target.curves((run for run in found if not run.learns_otherwise), _alike)
    if not curves:
        raise ConfigError(f"{word}: no synchronous runs of several batches there had a target_accuracy")
    asked = _training(dataclasses.asdict(config))
    differing = [(curve, _difference(asked, _of(curve))) for curve in curves]
    alike = [curve for curve, differs in differing if not differs]
    if not alike:
        nearest = min((differs for _, differs in differing), key=len)
        raise ConfigError(f"{word}: no runs of this training are there; the nearest differ: {_few(nearest)}")
    targets = sorted({_accuracy(curve) for curve in alike})
    if len(alike) > 1:
        wanted = " or ".join(f"target_accuracy={each:g}" for each in targets)
        raise ConfigError(f"{word}: has several targets of this training; say {wanted}")
    (curve,) = alike
    if curve.fit is None:
        raise ConfigError(
            f"{word}: too few batches of {curve.name} were reached by all their runs, for a curve"
        )
    return Evidence(folder, _accuracy(curve), curve, curve.fit, samples)


def _alike(config: Mapping[str, Any]) -> steps_to_target.Key:
    """Return what the runs of one training have in common, by whatever synchronous strategy."""
    return tuple(sorted(_training(config).items()))


def _accuracy(curve: Curve) -> float:
    return float(curve.tried[0].runs[0].get("target_accuracy"))


def _of(curve: Curve) -> dict[str, str]:
    return _training(curve.tried[0].runs[0].config)


def _training(config: Mapping[str, Any]) -> dict[str, str]:
    """Return what a training on one device learns by, however its work is divided."""
    found = dict(steps_to_target.identity(config))
    found["framework"] = str(config["strategy"]["framework"])
    return {key: value for key, value in found.items() if key.partition(".")[0] not in DIVIDED}


def _difference(asked: Mapping[str, str], there: Mapping[str, str]) -> list[str]:
    """Return in which keys two trainings differ; a target that isn't asked for is any."""
    keys = [key for key in {**asked, **there} if asked.get(key) != there.get(key)]
    if asked.get("target_accuracy") == str(None):
        keys = [key for key in keys if key != "target_accuracy"]
    return [f"{key}={there.get(key, 'none')} there, {asked.get(key, 'none')} here" for key in keys]


def _few(differing: list[str], most: int = 3) -> str:
    more = f", and {len(differing) - most} more" if len(differing) > most else ""
    return ", ".join(differing[:most]) + more
