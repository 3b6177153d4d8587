"""Show tables as text: choose and order their columns, and give values their units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from src.report.runs import Row


@dataclass(frozen=True)
class Column:
    """A column of a shown table: the row's key, a heading, and the kind by which `show` formats values."""

    key: str
    heading: str
    kind: str = "text"


@dataclass(frozen=True)
class View:
    """A table as text.

    Attributes:
        title: the table's name, and the columns with one value for all runs.
        headings: of the columns.
        rows: (status of the run, its cells).
        notes: sentences on what was left out or is flagged.
        numeric: whether each column holds numbers.
    """

    title: str
    headings: list[str]
    rows: list[tuple[str, list[str]]]
    notes: list[str]
    numeric: list[bool]


_RUN = (Column("label", "strategy"), Column("model", "model"), Column("dataset", "data"))
_SIZE = (
    *(Column("scaling", "scaling"), Column("seed", "seed", "count")),
    *(Column("workers", "workers", "count"), Column("batch", "batch", "count")),
)
_SPEEDUP, _STATUS = Column("speedup", "speed-up", "ratio"), Column("status", "status")
VIEWS: dict[str, tuple[Column, ...]] = {
    "scaling": (
        *(*_RUN, *_SIZE, Column("samples_per_second", "samples/s", "rate")),
        *(Column("step_seconds_median", "step", "seconds"), Column("seconds_per_epoch", "epoch", "seconds")),
        *(_SPEEDUP, Column("scaling_efficiency", "effic.", "percent")),
        *(
            Column("efficiency_own", "own eff.", "percent"),
            Column("train_time_efficiency", "T1/(N TN)", "percent"),
        ),
        *(
            Column("bubble_fraction", "bubble", "percent"),
            Column("bubble_ideal", "ideal b.", "percent"),
            _STATUS,
        ),
    ),
    "accuracy": (
        *(*_RUN, *_SIZE, Column("epochs", "epochs", "count"), Column("loss", "loss", "loss")),
        *(Column("accuracy", "accuracy", "accuracy"), Column("train_accuracy", "train acc.", "accuracy")),
        *(Column("seconds_to_target", "to target", "seconds"), _SPEEDUP),
        *(Column("parity", "parity"), Column("parity_gap", "gap", "gap"), _STATUS),
    ),
    "utilization": (
        *(*_RUN, *_SIZE, Column("utilization_mean", "used", "percent")),
        *(Column("busy_fraction", "busy", "percent"), Column("input_wait_fraction", "input", "percent")),
        *(Column("memory_peak_bytes", "memory", "bytes"), Column("saved_tensors_bytes", "saved", "bytes")),
        *(Column("energy_joules", "energy", "joules"), Column("payload_bytes", "payload", "bytes")),
        *(
            Column("helper_cpu_seconds", "helpers", "seconds"),
            Column("model_flops_utilization", "MFU", "percent"),
        ),
        _STATUS,
    ),
}
KINDS = {column.key: column.kind for view in VIEWS.values() for column in view}
KINDS |= dict.fromkeys(("train_seconds", "seconds_per_sample", "startup_seconds"), "seconds")
# Columns that stand once above the table when every run has the same value.
SAID_ONCE = ("model", "dataset", "scaling", "seed")


def view(name: str, rows: Sequence[Row]) -> View:
    """Make the view `name` of `VIEWS` from merged rows.

    Columns of `SAID_ONCE` with a single value go into the title; columns without a figure are left out.
    """
    once, shown, empty = [], [], []
    for column in VIEWS[name]:
        values = {row.get(column.key) for row in rows}
        if column.key in SAID_ONCE and len(values - {None}) <= 1:
            once += [f"{column.heading} {value}" for value in values if value is not None]
        elif column.kind != "text" and values <= {None}:
            empty.append(column.heading)
        else:
            shown.append(column)
    notes = [f"Not measured by any run, or not comparable: {', '.join(empty)}."] if empty else []
    if name == "scaling" and any(row.get("probe_flag") for row in rows):
        notes.append("* the machine was faster or slower by more than 10 % in the run compared with (probe).")
    if any(row.get("shared_device") for row in rows):
        notes.append("Runs whose workers shared a device have no ratios: they check correctness only.")
    return View(
        ", ".join([name, *once]),
        [column.heading for column in shown],
        [(str(row["status"]), [_cell(row, column) for column in shown]) for row in rows],
        notes,
        [column.kind != "text" for column in shown],
    )


def _cell(row: Row, column: Column) -> str:
    text = show(row.get(column.key), column.kind)
    if column.key == "status" and row.get("shared_device"):
        return f"{text}, shared device"
    flagged = column.key in ("speedup", "efficiency_own") and row.get("probe_flag") and text != "-"
    return f"{text}*" if flagged else text


def show(value: Any, kind: str = "text") -> str:
    """Format a value by the column's kind, rounded and with its unit; `None` becomes `-`."""
    if value is None:
        return "-"
    if kind == "text" or isinstance(value, str) or not math.isfinite(value):
        return str(value)
    if kind == "seconds":
        return f"{_digits(value * 1e3)} ms" if abs(value) < 1 else f"{_digits(value)} s"
    if kind == "bytes":
        return _scaled(value, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))
    if kind == "joules":
        return _scaled(value, 1000, ("J", "kJ", "MJ", "GJ"))
    if kind == "rate":
        return _digits(value)
    if kind == "gap" and value == 0:
        return "0"
    forms = {"ratio": ".2f", "percent": ".0%", "accuracy": ".2%", "loss": ".4f", "gap": ".0e", "count": "g"}
    return format(value, forms.get(kind, ".4g"))


def _digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:.3g}"


def _scaled(value: float, base: int, units: Sequence[str]) -> str:
    power = 0
    while abs(value) >= base and power < len(units) - 1:
        value, power = value / base, power + 1
    return f"{_digits(value)} {units[power]}"
