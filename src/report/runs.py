"""Read a study's run directories; a damaged or absent one becomes a run that says so, never an exception."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from src.config.keys import GROUPS, key_of
from src.config.run_config import MESH
from src.config.schema import SYNCHRONOUS, flatten
from src.measure.arithmetic import mean
from src.run import files
from src.run.status import MEASURED, Status
from src.run.tables import Row, read_mapping, read_table

# Keys of runs whose labels tell their options.
ALIKE = ("strategy", "model", "dataset", "data_source")


@dataclass(frozen=True)
class StudyRun:
    """One cell of a study, and everything that its run directory tells of it.

    Attributes:
        cell: the cell's name.
        status: how it ended; `missing` has no directory, `failed` crashed or left no readable metrics,
            `skipped` asked for what the machine lacks.
        directory: the run's directory.
        declared: the cell's keys in the study.
        config: `config.yaml`, empty where it can't be read; likewise the next two.
        metrics: `metrics.json`.
        environment: `environment.json`.
        error: why the run failed, was skipped or is missing, if that is known.
    """

    cell: str
    status: Status
    directory: Path
    declared: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None

    @cached_property
    def facts(self) -> Row:
        """Return the run's facts by flat key: `model` is the model's name, `strategy.schedule` an option.

        Measured values take the place of configured ones (`epochs`), except for `batch`.
        """
        configured = _options(self.config)
        measured = {key: value for key, value in self.metrics.items() if value is not None}
        flat = {"repetition": 1, **self.declared, **configured, **measured}
        flat |= {"cell": self.cell, "status": self.status}
        flat.setdefault("framework", configured.get("strategy.framework"))
        if "batch" in configured:
            flat["batch"] = configured["batch"]
        return flat

    def get(self, key: str) -> Any:
        """Return the fact called `key`, or `None`."""
        return self.facts.get(key)

    @property
    def configuration(self) -> str:
        """Return the name of the configuration that the run repeats, by default that of its cell."""
        return str(self.declared.get("configuration") or self.cell)

    @property
    def global_batch(self) -> int | None:
        """Return the number of samples in an optimizer step of all workers."""
        batch = self.get("batch")
        if batch is None:
            return None
        return batch * (self.get("workers") or 1) if self.get("scaling") == "weak" else batch

    @property
    def sharers(self) -> int:
        """Return how many workers divide each global batch among them; 1 where each worker sees all."""
        if not self.get("strategy.supports.shares_batch"):
            return 1
        if self.get("strategy.supports.axis") == MESH:
            return (self.get("strategy.data") or 1) * (self.get("strategy.shard") or 1)
        return self.get("workers") or 1

    @property
    def stages(self) -> int:
        """Return into how many stages the model is cut, if it is."""
        if self.get("strategy.supports.axis") == MESH:
            return self.get("strategy.pipeline") or 1
        return self.get("workers") or 1

    @property
    def comparable(self) -> bool:
        """Return whether ratios may be taken of the run: it was measured, and no workers shared a device."""
        return self.status in MEASURED and not self.get("shared_device")

    @property
    def trains(self) -> bool:
        """Return whether its ranks train one model; those of `capacity` have nothing in common."""
        return not self.get("strategy.capacity")

    @property
    def learns_otherwise(self) -> bool:
        """Return whether its strategy says that its losses can't be those of one device."""
        says = self.get("strategy.parity") not in (None, SYNCHRONOUS)
        return says or self.get("strategy.synchronous") is False

    @cached_property
    def probe(self) -> float | None:
        """Return the mean GFLOP/s of the probes before and after the run, over its ranks."""
        probes = self.environment.get("probes") or {}
        rates = [*(probes.get("before") or []), *(probes.get("after") or [])]
        return mean([float(rate) for rate in rates if isinstance(rate, int | float)])

    @cached_property
    def losses(self) -> list[float]:
        """Return rank 0's loss by step, up to the first that was not recorded; empty for a resumed run."""
        steps = [row for row in read_table(self.directory / files.STEPS) if row.get("rank") == 0]
        steps.sort(key=lambda row: (row.get("epoch") or 0, row.get("step") or 0))
        if steps and steps[0].get("step") != 1:
            # The first losses of a resumed run don't compare with those of a run from the beginning.
            return []
        losses: list[float] = []
        for row in steps:
            if row.get("loss") is None:
                break
            losses.append(row["loss"])
        return losses

    @cached_property
    def staleness(self) -> dict[float, float]:
        """Return the share of steps by the staleness of their gradient, in ascending order."""
        rows = read_table(self.directory / files.STEPS)
        counts = Counter(float(row["staleness"]) for row in rows if row.get("staleness") is not None)
        return {stale: counts[stale] / counts.total() for stale in sorted(counts)}

    @cached_property
    def epochs(self) -> list[Row]:
        """Return the rows of `epochs.csv`, with `train_seconds`, the training time up to that evaluation."""
        rows = read_table(self.directory / files.EPOCHS)
        passed: float | None = 0.0
        for row in rows:
            seconds = row.get("seconds")
            passed = None if passed is None or seconds is None else passed + seconds
            row["train_seconds"] = passed
        return rows

    @cached_property
    def trace(self) -> list[Row]:
        """Return the rows of `trace.csv`, without those that have no time."""
        return [row for row in read_table(self.directory / files.TRACE) if row.get("time") is not None]

    @cached_property
    def ranks(self) -> list[Row]:
        """Return the rows of `workers.csv`: what each rank spent its timed steps on."""
        return read_table(self.directory / files.WORKERS)

    @cached_property
    def exchanges(self) -> list[Row]:
        """Return the rows of `exchange.csv`: what each rank exchanged in a step, by axis and kind."""
        return read_table(self.directory / files.EXCHANGES)

    @cached_property
    def cut(self) -> Mapping[str, Any]:
        """Return the cut of the model into stages (`partition.json`); empty where it was not cut."""
        return read_mapping(self.directory / files.PARTITION)

    @cached_property
    def live_tensors(self) -> Mapping[str, Any]:
        """Return what of each rank's tensors was live over a step; empty where none were followed."""
        return read_mapping(self.directory / files.LIVE_TENSORS)

    @cached_property
    def timeline(self) -> list[Row]:
        """Return what stages or workers did: complete events of `timeline.json`, times in microseconds."""
        events = read_mapping(self.directory / files.TIMELINE).get("traceEvents") or []
        return [event for event in events if event.get("ph") == "X"]


def load(cells: Mapping[str, Mapping[str, Any] | None], directory: Path) -> list[StudyRun]:
    """Read the runs of `cells` (name to declared keys) from `directory/<cell>/`, in the cells' order."""
    return [load_run(cell, declared or {}, directory / cell) for cell, declared in cells.items()]


def load_run(cell: str, declared: Mapping[str, Any], directory: Path) -> StudyRun:
    """Read one run; one that is absent or half-written has the status `missing` or `failed`."""
    if not directory.is_dir():
        return StudyRun(cell, Status.MISSING, directory, declared, error="the run's directory is not there")
    metrics = read_mapping(directory / files.METRICS)
    status, error = Status.FAILED, None
    try:
        status = Status(str(metrics.get("status")))
    except ValueError:
        error = "metrics.json is not there or cannot be read"
    if status is Status.SKIPPED:
        error = metrics.get("error")
    if status is Status.FAILED:
        error = metrics.get("error") or last_error(directory) or error
    return StudyRun(
        cell,
        status,
        directory,
        declared,
        read_mapping(directory / files.CONFIG),
        metrics,
        read_mapping(directory / files.ENVIRONMENT),
        error,
    )


def retry_command(run: StudyRun) -> str:
    """Return the shell command that runs one cell again."""
    return f"dvc repro -f -s {shlex.quote(f'train@{run.cell}')}"


def last_error(directory: Path) -> str | None:
    """Return the last line of the ranks' logs that names an error, else the last that is not empty."""
    last = named = None
    for log in sorted((directory / files.LOGS).glob("rank-*.log")):
        try:
            lines = log.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            # The cell is just run again.
            continue
        for line in lines:
            line = line.strip()
            last = line or last
            if "Error" in line or "Exception" in line:
                named = line
    return named or last


def labels(runs: Sequence[StudyRun]) -> dict[str, str]:
    """Return a short name for each cell: its strategy, and the options by which runs of it differ.

    Options are compared within one strategy, model, dataset and source: `pipeline [partition=time]`. Those of
    the hardware are shown where runs on hardware of one name, which has a column of its own, differ in them.
    """
    configured = {run.cell: _options(run.config) for run in runs}
    named: dict[str, str] = {}
    for run in runs:
        alike = [other for other in runs if all(other.get(k) == run.get(k) for k in ALIKE)]
        # A cell that left no configuration doesn't differ from the others: its options are unknown.
        others = [configured[other.cell] for other in alike if other.config]
        options = sorted({key for other in others for key in other if key_of(key).labelled})
        differing = [key for key in options if _differs(key, others)]
        chosen = {key: configured[run.cell].get(key) for key in differing}
        if chosen.get("microbatches") == 1:
            del chosen["microbatches"]
        shown = [f"{_short(key, options)}={value}" for key, value in chosen.items() if value is not None]
        strategy = str(run.get("strategy") or run.cell)
        named[run.cell] = f"{strategy} [{', '.join(shown)}]" if shown else strategy
    return named


def _differs(key: str, configurations: Sequence[Row]) -> bool:
    """Return whether an option has several values; one of the hardware: on hardware of one name."""
    values: dict[Any, set[str]] = {}
    for options in configurations:
        place = options.get("hardware") if key.startswith("hardware.") else None
        values.setdefault(place, set()).add(str(options.get(key)))
    return any(len(found) > 1 for found in values.values())


def _short(key: str, keys: Sequence[str]) -> str:
    """Return the last part of a dotted key, or the whole key where another one of `keys` ends alike."""
    last = key.split(".")[-1]
    # Every group has a name.
    alike = last == "name" or sum(other.split(".")[-1] == last for other in keys) > 1
    return key if alike else last


def _options(config: Mapping[str, Any]) -> Row:
    """Return a configuration by dotted key, and under a group's own key the name of its choice."""
    names = {group: config[group].get("name") for group in GROUPS if isinstance(config.get(group), Mapping)}
    return {**flatten(config), **names}
