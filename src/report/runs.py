"""Reads a study's run directories; a damaged or absent one becomes a run that says so, never an exception."""

from __future__ import annotations

import csv
import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from src.measure.arithmetic import mean

# Runs with one of these were measured; the others have no figures to compare.
MEASURED = ("ok", "time_limit", "diverged")
STATUSES = (*MEASURED, "out_of_memory", "failed", "missing")
GROUPS = ("strategy", "model", "dataset", "hardware")
# Keys that name a run's columns, its place or its length rather than a variant of its strategy.
NOT_VARIANTS = {
    *GROUPS,
    "strategy.name",
    "strategy.framework",
    "strategy.parity",
    "workers",
    "batch",
    "scaling",
    "seed",
    "max_minutes",
    "evaluate_every",
    "target_accuracy",
    "out",
    "overwrite",
    "overrides",
    "hardware.grace_minutes",
    "hardware.sample_seconds",
}

Row = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One cell of a study: what was declared, what was configured, what was measured.

    `status` is one of `STATUSES`; `missing` has no directory, `failed` crashed or left no readable metrics.
    """

    cell: str
    status: str
    directory: Path
    declared: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None

    @cached_property
    def facts(self) -> Row:
        """Everything known of the run, flat: `model` is the model's name, `strategy.schedule` an option.

        What was measured wins over what was configured (`epochs`), but `batch` is the one typed.
        """
        configured = dict(_flatten(self.config))
        measured = {key: value for key, value in self.metrics.items() if value is not None}
        flat = {**self.declared, **configured, **measured, "cell": self.cell, "status": self.status}
        flat.setdefault("framework", configured.get("strategy.framework"))
        if "batch" in configured:
            flat["batch"] = configured["batch"]
        return flat

    def get(self, key: str) -> Any:
        """The fact called `key`, or `None`."""
        return self.facts.get(key)

    @property
    def global_batch(self) -> int | None:
        """Samples per optimizer step over all workers."""
        batch = self.get("batch")
        if batch is None:
            return None
        return batch * (self.get("workers") or 1) if self.get("scaling") == "weak" else batch

    @property
    def comparable(self) -> bool:
        """Whether the run may enter a ratio: measured, and no device shared by several workers."""
        return self.status in MEASURED and not self.get("shared_device")

    @cached_property
    def probe(self) -> float | None:
        """Mean GFLOP/s of the probes before and after the run, over its ranks."""
        probes = self.environment.get("probes") or {}
        rates = [*(probes.get("before") or []), *(probes.get("after") or [])]
        return mean([float(rate) for rate in rates if isinstance(rate, int | float)])

    @cached_property
    def losses(self) -> list[float]:
        """Rank 0's loss of each step from the first, up to the first that was not recorded."""
        steps = [row for row in read_csv(self.directory / "steps.csv") if row.get("rank") == 0]
        steps.sort(key=lambda row: (row.get("epoch") or 0, row.get("step") or 0))
        if steps and steps[0].get("step") != 1:
            # A resumed run: its first losses are nobody else's first ones.
            return []
        losses: list[float] = []
        for row in steps:
            if row.get("loss") is None:
                break
            losses.append(row["loss"])
        return losses

    @cached_property
    def staleness(self) -> dict[int, float]:
        """The share of steps by the staleness of their gradient, in its order."""
        rows = read_csv(self.directory / "steps.csv")
        counts = Counter(int(row["staleness"]) for row in rows if row.get("staleness") is not None)
        return {stale: counts[stale] / counts.total() for stale in sorted(counts)}

    @cached_property
    def epochs(self) -> list[Row]:
        """The rows of `epochs.csv`, each with `train_seconds`: the training time up to that evaluation."""
        rows = read_csv(self.directory / "epochs.csv")
        passed: float | None = 0.0
        for row in rows:
            seconds = row.get("seconds")
            passed = None if passed is None or seconds is None else passed + seconds
            row["train_seconds"] = passed
        return rows

    @cached_property
    def trace(self) -> list[Row]:
        """The rows of `trace.csv`, without those that carry no time."""
        return [row for row in read_csv(self.directory / "trace.csv") if row.get("time") is not None]

    @cached_property
    def cut(self) -> Mapping[str, Any]:
        """The model's cut into stages (`partition.json`); empty where it was not cut."""
        return _mapping(self.directory / "partition.json")

    @cached_property
    def timeline(self) -> list[Row]:
        """The stages' intervals: complete events of `timeline.json`, times in microseconds."""
        events = _mapping(self.directory / "timeline.json").get("traceEvents") or []
        return [event for event in events if event.get("ph") == "X"]


def load(cells: Mapping[str, Mapping[str, Any] | None], directory: Path) -> list[Run]:
    """The runs of `cells` (name to declared keys), read from `directory/<cell>/`, in the cells' order."""
    return [load_run(cell, declared or {}, directory / cell) for cell, declared in cells.items()]


def load_run(cell: str, declared: Mapping[str, Any], directory: Path) -> Run:
    """One run; a directory that is absent or half-written gives status `missing` or `failed`."""
    if not directory.is_dir():
        return Run(cell, "missing", directory, declared, error="the run's directory is not there")
    metrics = _mapping(directory / "metrics.json")
    status = metrics.get("status")
    error = None
    if status not in STATUSES:
        status = "failed"
        error = "metrics.json is not there or cannot be read"
    if status == "failed":
        error = metrics.get("error") or last_error(directory) or error
    return Run(
        cell,
        status,
        directory,
        declared,
        _mapping(directory / "config.yaml"),
        metrics,
        _mapping(directory / "environment.json"),
        error,
    )


def retry_command(run: Run) -> str:
    """The shell command that runs one cell again."""
    return f"dvc repro -f -s {shlex.quote(f'train@{run.cell}')}"


def last_error(directory: Path) -> str | None:
    """The last line of the ranks' logs that names an error, else the last line that is not empty."""
    last = named = None
    for log in sorted((directory / "logs").glob("rank-*.log")):
        for line in log.read_text(errors="replace").splitlines():
            line = line.strip()
            last = line or last
            if "Error" in line or "Exception" in line:
                named = line
    return named or last


def read_csv(path: Path) -> list[Row]:
    """Rows of a CSV file, numbers as floats and empty fields as `None`; no rows if it cannot be read."""
    try:
        with path.open(newline="", errors="replace") as file:
            return [{key: _number(text) for key, text in row.items() if key} for row in csv.DictReader(file)]
    except (OSError, csv.Error):
        return []


def labels(runs: Sequence[Run]) -> dict[str, str]:
    """A short name for each cell: its strategy, and the options by which its runs here differ.

    Options are compared within one strategy, model and dataset: `pipeline`, or `pipeline [partition=time]`.
    """
    configured = {run.cell: dict(_flatten(run.config)) for run in runs}
    named: dict[str, str] = {}
    for run in runs:
        alike = [other for other in runs if all(other.get(k) == run.get(k) for k in GROUPS[:3])]
        # A cell that left no configuration says less than the others, not something else.
        others = [configured[other.cell] for other in alike if other.config]
        options = sorted({key for other in others for key in other if _is_variant(key)})
        differing = [key for key in options if len({str(other.get(key)) for other in others}) > 1]
        mine = {key: configured[run.cell].get(key) for key in differing}
        if mine.get("microbatches") == 1:
            del mine["microbatches"]
        shown = [f"{key.split('.')[-1]}={value}" for key, value in mine.items() if value is not None]
        strategy = str(run.get("strategy") or run.cell)
        named[run.cell] = f"{strategy} [{', '.join(shown)}]" if shown else strategy
    return named


def _is_variant(key: str) -> bool:
    return key not in NOT_VARIANTS and not key.startswith("tracking.")


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            if not prefix and key in GROUPS:
                yield key, value.get("name")
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _mapping(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text()
        tree = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return tree if isinstance(tree, dict) else {}


def _number(text: Any) -> Any:
    if not isinstance(text, str) or not text.strip():
        return None
    try:
        return float(text)
    except ValueError:
        return text
