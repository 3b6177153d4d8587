"""Read finished runs, by which predictions are calibrated, and against which they are held."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import yaml

from src.config import Config, ConfigError, load
from src.launch.finished_cells import by_this_software
from src.predict import sheets
from src.predict.own import added, cost_profile, steps
from src.predict.own.calibration import Run
from src.predict.own.constants import Constants
from src.predict.own.cost_profile import Profile
from src.run import files
from src.run.status import MEASURED
from src.run.tables import parse_rows, read_mapping


@dataclass(frozen=True)
class Finished:
    """A finished run.

    Attributes:
        config: the run's, with its directory.
        seconds: of a step; `None` where too few were timed.
        began: when it was first sampled, in seconds since 1970; 0 where that isn't known.
        environment: in which it ran.
        live_bytes: of its live tensors at most, where they were followed.
    """

    config: Config
    seconds: float | None
    began: float
    environment: Mapping[str, Any]
    live_bytes: float | None = None

    @property
    def folder(self) -> Path:
        """Return the run's directory."""
        return Path(self.config.out)

    @property
    def shares_devices(self) -> bool:
        """Return whether several of its workers had one device."""
        hardware = self.config.hardware
        if not hardware.share_devices:
            return False
        usable = len((self.environment.get("processors") or {}).get("usable") or ())
        on_cpu = hardware.device == "cpu"
        there = usable // hardware.cores_per_device if on_cpu else len(self.environment.get("gpus") or ())
        return self.config.workers > there

    def why_not(self, machine: str) -> str:
        """Return why its steps tell nothing of runs on a machine by this software; nothing where they do."""
        cost_profile.kind_of(self.config)
        if self.seconds is None:
            return "too few of its steps were timed"
        if self.shares_devices:
            return "its workers shared devices"
        where = cost_profile.machine_of(self.environment)
        if where != machine:
            return f"it ran on another machine ({where})"
        return "" if by_this_software(self.config) else "it was computed by other code than there is now"


def folders(given: Iterable[Path]) -> Iterator[Path]:
    """Yield the runs' directories in folders: those of runs, of studies, or of many of these.

    Raises:
        ConfigError: for what is no folder.
    """
    for folder in given:
        if not folder.is_dir():
            raise ConfigError(f"--runs {folder}: is no folder")
        for path in sorted(folder.glob(f"**/{files.METRICS}")):
            if (path.parent / files.CONFIG).exists():
                yield path.parent


def finished(given: Iterable[Path]) -> list[Finished]:
    """Return the runs in folders that ended with a measured step; what can't be read is left out."""
    found = []
    for folder in folders(given):
        metrics = read_mapping(folder / files.METRICS)
        seconds = metrics.get("step_seconds_median")
        if metrics.get("status") not in MEASURED or not isinstance(seconds, int | float):
            continue
        try:
            config = dataclasses.replace(load(folder / files.CONFIG), out=str(folder))
        except (ConfigError, yaml.YAMLError, TypeError, KeyError, ValueError):
            continue
        if (seconds := _seconds(config, metrics, folder)) is not None and not 0 < seconds < math.inf:
            continue
        environment = read_mapping(folder / files.ENVIRONMENT)
        live = metrics.get("live_peak_bytes")
        found.append(Finished(config, seconds, _began(folder), environment, live))
    return found


def _seconds(config: Config, metrics: Mapping[str, Any], folder: Path) -> float | None:
    """Return the seconds of a run's step: the median, or a mean where not all steps are alike.

    They aren't where workers of unequal speed go on by themselves, or where something is exchanged in some
    steps: there it is the mean over these, of each the median. It is `None` where too few steps were timed.
    """
    if config.hardware.speeds and not config.synchronous and config.supports.shares_batch:
        rate = metrics.get("samples_per_second")
        return config.global_batch / rate if isinstance(rate, int | float) and rate > 0 else None
    if (period := math.lcm(*added.every(config))) == 1:
        return float(metrics["step_seconds_median"])
    alike: dict[int, list[float]] = {}
    with contextlib.suppress(OSError, KeyError, ValueError), (folder / files.STEPS).open(newline="") as file:
        for row in parse_rows(file):
            # What is exchanged with needs memory, which the first ones make.
            if int(row["rank"]) == 0 and int(row["step"]) > config.warmup_steps + period:
                alike.setdefault(int(row["step"]) % period, []).append(float(row["seconds"]))
    return mean(map(median, alike.values())) if len(alike) == period else None


def _began(folder: Path) -> float:
    try:
        with (folder / files.TRACE).open(newline="") as file:
            return float(next(parse_rows(file))["time"])
    except (OSError, StopIteration, KeyError, TypeError, ValueError):
        return 0.0


def signature(config: Config) -> str:
    """Return what two runs have in common whose steps are the same work, on one machine."""
    return _signature(config, cost_profile.identity(config) | {"links": config.hardware.links})


def signature_on(config: Config, hardware: str, unit: str, network: str | None = None) -> str:
    """Return what runs have in common of which predictions for a described device tell.

    Args:
        config: of a run.
        hardware: name of the device's data sheet.
        unit: of what is predicted: `seconds` of a step, or `bytes` that a device holds.
        network: between nodes, where there are several.
    """
    alike = dict(cost_profile.identity(config))
    for key in ("device", "cores_per_device"):
        alike.pop(key)
    return _signature(config, alike | {"hardware": hardware, "unit": unit, "network": network})


def _signature(config: Config, alike: Mapping[str, Any]) -> str:
    unequal = {"batch_shares": config.batch_shares, "speeds": config.hardware.speeds}
    every = {
        **{key: value for key, value in unequal.items() if value not in ("equal", None)},
        **alike,
        "strategy": cost_profile.options_of(config),
        "workers": config.workers,
        "batch": config.global_batch,
        "microbatches": config.microbatches,
    }
    return hashlib.sha256(json.dumps(every, sort_keys=True, default=str).encode()).hexdigest()[:16]


def measured(runs: Sequence[Finished], profile: Profile) -> tuple[list[Run], list[str]]:
    """Return runs with their steps, repetitions together; and why others have none, a line each.

    Args:
        runs: finished ones.
        profile: of their machine.
    """
    alike: dict[str, list[Finished]] = {}
    left: list[str] = []
    for run in runs:
        why = _reason(run, profile.machine)
        if why:
            left.append(f"{run.folder}: {why}")
        else:
            alike.setdefault(signature(run.config), []).append(run)
    found = []
    for own in alike.values():
        try:
            step = steps.of(own[0].config, profile)
            # What can't be predicted shows at the first attempt.
            step.parts(Constants())
        except ConfigError as error:
            left.append(f"{own[0].folder}: {error}")
            continue
        seconds = [run.seconds for run in own if run.seconds is not None]
        found.append(Run(step, median(seconds), (max(seconds) - min(seconds)) / 2))
    return found, left


# By signature: when a run began, what it measured, and its folder.
Answers = dict[str, list[tuple[float, float, str]]]


def answers(there: Sequence[Finished], machine: str) -> Answers:
    """Return what runs on a machine have measured, in seconds."""
    found: Answers = {}
    for run in there:
        if not _reason(run, machine) and run.seconds is not None:
            row = run.began, run.seconds, str(run.folder)
            found.setdefault(signature(run.config), []).append(row)
    return found


def answers_described(there: Sequence[Finished]) -> Answers:
    """Return what runs on the devices of one host have measured of which there are data sheets."""
    found: Answers = {}
    for run in there:
        hardware = sheets.reported_as(run.environment.get("gpus") or ())
        if hardware is None:
            continue
        for unit, came in (("seconds", run.seconds), ("bytes", run.live_bytes)):
            try:
                if came is not None and _is_plain(run):
                    row = run.began, float(came), str(run.folder)
                    found.setdefault(signature_on(run.config, hardware, unit), []).append(row)
            except (ConfigError, KeyError, TypeError, AttributeError):
                # It was configured in another way than runs are now.
                continue
    return found


def _is_plain(run: Finished) -> bool:
    """Return whether a run is one of which a prediction for described devices tells."""
    config = run.config
    alone = config.hardware.device == "gpu" and not (config.across_hosts or run.shares_devices)
    return alone and bool(by_this_software(config))


def _reason(run: Finished, machine: str) -> str:
    """Return why a run isn't compared; nothing where it is."""
    try:
        return run.why_not(machine)
    except ConfigError as error:
        return str(error)
    except (KeyError, TypeError, AttributeError):
        return "it was configured in another way than runs are now"
