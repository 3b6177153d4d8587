"""Show tables as text: choose and order their columns, and give values their units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from src.measure.arithmetic import INPUT_BOUND, MIN_SLOW_STEPS, MIN_TIMED_STEPS
from src.report import comparison, missing_baseline
from src.report.runs import Row, StudyRun
from src.run.status import Status


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
        values: of each row and column, by which rows can be sorted; `None` where there is none.
    """

    title: str
    headings: list[str]
    rows: list[tuple[str, list[str]]]
    notes: list[str]
    numeric: list[bool]
    values: list[list[Any]]


_RUN = (
    Column("label", "strategy"), Column("model", "model"), Column("dataset", "data"),
    Column("data_source", "source"), Column("hardware", "hardware"), Column("machine", "machine"),
)  # fmt: skip
_SIZE = (
    Column("scaling", "scaling"), Column("seed", "seed", "count"),
    Column("workers", "workers", "count"), Column("batch", "batch", "count"),
)  # fmt: skip
_SPEEDUP, _STATUS = Column("speedup", "speed-up", "ratio"), Column("status", "status")
# Names that a note lists before it only counts them.
NAMES = 6
# These mark figures of disturbed runs, and ratios of runs between which the machine's speed changed.
DISTURBED, PROBE = "\N{DAGGER}", "*"
# This marks figures of runs that their input bound.
INPUT = "\N{DOUBLE DAGGER}"
# This marks rates of few steps that took long.
FEW = "\N{SECTION SIGN}"
# What runs on text have besides samples/s.
_TOKENS = Column("tokens_per_second", "tokens/s", "rate")
# Columns of tasks that have another first metric than the accuracy.
OF_OTHER_TASKS = ("metric", "score")
VIEWS: dict[str, tuple[Column, ...]] = {
    "scaling": (
        *_RUN, *_SIZE, Column("samples_per_second", "samples/s", "rate"), _TOKENS,
        Column("step_seconds_median", "step", "seconds"), Column("seconds_per_epoch", "epoch", "seconds"),
        _SPEEDUP, Column("over", "over"), Column("scaling_efficiency", "effic.", "percent"),
        Column("efficiency_own", "own eff.", "percent"),
        Column("train_time_efficiency", "T1/(N TN)", "percent"),
        Column("bubble_fraction", "bubble", "percent"),
        Column("bubble_ideal", "ideal b.", "percent"),
        _STATUS,
    ),
    "accuracy": (
        *_RUN, *_SIZE, Column("epochs", "epochs", "count"), Column("loss", "loss", "loss"),
        Column("accuracy", "accuracy", "accuracy"), Column("train_accuracy", "train acc.", "accuracy"),
        Column("metric", "metric"), Column("score", "score", "loss"),
        Column("seconds_to_target", "to target", "seconds"), _SPEEDUP,
        Column("parity", "parity"), Column("parity_gap", "gap", "gap"),
        Column("rounding_gap", "rounding", "gap"), _STATUS,
    ),
    "utilization": (
        *_RUN, *_SIZE, Column("utilization_mean", "used", "percent"),
        Column("busy_fraction", "busy", "percent"), Column("input_wait_fraction", "input", "percent"),
        Column("bound", "bound by"),
        Column("cpu_wait_fraction", "waited", "percent"), Column("steal_fraction", "stolen", "percent"),
        Column("memory_peak_bytes", "memory", "bytes"), Column("saved_tensors_bytes", "saved", "bytes"),
        Column("state_bytes", "state", "bytes"),
        Column("energy_joules", "energy", "joules"), Column("payload_bytes", "payload", "bytes"),
        Column("helper_cpu_seconds", "helpers", "seconds"),
        Column("model_flops_utilization", "MFU", "percent"),
        _STATUS,
    ),
}  # fmt: skip
# A view of emulated links, which few studies have.
NETWORK = "network"
ACCURACY = "accuracy"
VIEWS[NETWORK] = (
    *_RUN, Column("workers", "workers", "count"),
    Column("batch", "batch", "count"), Column("link_rate_asked_mbit", "Mbit/s", "count"),
    Column("link_rate_mbit", "measured", "speed"), Column("link_round_trip_asked_ms", "ms", "count"),
    Column("link_round_trip_ms", "measured", "milliseconds"),
    Column("payload_batch_bytes", "payload/b.", "bytes"),
    Column("network_batch_bytes", "sent/b.", "bytes"), Column("batch_seconds", "a batch", "seconds"),
    Column("compute_seconds", "computing", "seconds"), Column("wire_batch_seconds", "wire", "seconds"),
    Column("round_trips", "trips", "count"), Column("expected_seconds", "expected", "seconds"),
    Column("expected_ratio", "over exp.", "ratio"), Column("compute_share", "device", "percent"),
    Column("link_utilization", "link", "percent"), Column("router_fraction", "router", "percent"), _STATUS,
)  # fmt: skip
# A view of the cells of a sweep, which have no study.
SWEEP = "sweep"
VIEWS[SWEEP] = (
    *_RUN, *_SIZE, Column("samples_per_second", "samples/s", "rate"), _TOKENS, _SPEEDUP,
    Column("over", "over"),
    Column("accuracy", "accuracy", "accuracy"), Column("metric", "metric"), Column("score", "score", "loss"),
    Column("parity", "parity"), _STATUS,
)  # fmt: skip
KINDS = {column.key: column.kind for view in VIEWS.values() for column in view}
KINDS |= dict.fromkeys(("train_seconds", "seconds_per_sample", "startup_seconds"), "seconds")
# Views of which the notes say what speed-ups stand on.
OF_SPEED = ("scaling", SWEEP)
# Columns that stand once above the table when every run has the same value.
SAID_ONCE = ("model", "dataset", "data_source", "scaling", "seed", "over")
# A value of these that stands above the table says more with other words than the column's heading.
ONCE = {"over": "speed-up over"}
# Columns that are left out when every run has the same value.
UNSAID = ("hardware", "machine")
# Columns whose figures a disturbance changes, and those that are ratios to other runs.
RATES = (
    "samples_per_second",
    "tokens_per_second",
    "step_seconds_median",
    "seconds_per_epoch",
    "seconds_to_target",
)
RATIOS = ("speedup", "scaling_efficiency", "efficiency_own", "train_time_efficiency")


def views(rows: Sequence[Row]) -> list[View]:
    """Make all views, each for original and for generated data apart, which don't compare."""
    sources = dict.fromkeys(row.get("data_source") for row in rows)
    # A run that left nothing, and whose study doesn't say its source, stands with the first ones.
    known = [source for source in sources if source is not None] or [None]
    # What a study has no links for isn't shown.
    linked = any(row.get("link_round_trip_ms") is not None for row in rows)
    return [
        view(name, [row for row in rows if (row.get("data_source") or known[0]) == source])
        for name in VIEWS
        if name != SWEEP and (name != NETWORK or linked)
        for source in known
    ]


def view(name: str, rows: Sequence[Row]) -> View:
    """Make the view `name` of `VIEWS` from merged rows.

    Columns of `SAID_ONCE` with a single value go into the title; columns without a figure are left out.
    """
    once, shown, empty = [], [], []
    rows = [{**row, **dict.fromkeys(RATES)} if row.get("shared_device") else row for row in rows]
    if name == ACCURACY:
        # What `capacity` measures is no model, and no accuracy.
        rows = [row for row in rows if row["run"].trains] or rows
    # The score of classification is the accuracy, which has a column of its own.
    only_accuracy = {row.get("metric") for row in rows} <= {None, "accuracy"}
    for column in VIEWS[name]:
        if column.key in OF_OTHER_TASKS and only_accuracy:
            continue
        if column == _TOKENS and all(row.get(column.key) is None for row in rows):
            continue
        # A text may be empty; a seed of 0 is one.
        known = [row.get(column.key) for row in rows if row["status"] != Status.MISSING]
        values = {None if value == "" else value for value in known}
        if column.key in UNSAID and len(values - {None}) <= 1:
            continue
        if column.key in SAID_ONCE and len(values - {None}) <= 1:
            once += [
                f"{ONCE.get(column.key, column.heading)} {value}" for value in values if value is not None
            ]
        elif column.kind != "text" and {row.get(column.key) for row in rows} <= {None}:
            empty.append(column.heading)
        else:
            shown.append(column)
    return View(
        ", ".join([name, *once]),
        [column.heading for column in shown],
        [(str(row["status"]), [_cell(row, column) for column in shown]) for row in rows],
        _notes(name, rows, empty),
        [column.kind != "text" for column in shown],
        [[row.get(column.key) for column in shown] for row in rows],
    )


def _notes(name: str, rows: Sequence[Row], empty: Sequence[str]) -> list[str]:
    """Return the sentences below the table `name`, of whose columns those called `empty` are left out."""
    notes = [f"Not measured by any run, or not comparable: {', '.join(empty)}."] if empty else []
    repeated = max((row.get("repetitions") or 0 for row in rows), default=0)
    if repeated > 1:
        notes.append(
            f"Figures are medians of up to {repeated} repetitions; in brackets the speed-up's 95 % interval."
        )
    elif name in OF_SPEED:
        notes.append(
            "Each figure is one run: how far two runs of the same differ is not known, and nothing is called "
            "faster (`repeat: 3` in a study, or make study REPEAT=3)."
        )
    if name in OF_SPEED and any(row.get("probe_flag") for row in rows):
        notes.append(
            f"{PROBE} the machine was faster or slower by more than 10 % in the run compared with, or "
            "changed within a run (probe)."
        )
    if any(row.get("disturbed") or row.get("ratio_disturbed") for row in rows):
        notes.append(
            f"{DISTURBED} other processes took more than 5 % of the run's time, or of that compared with."
        )
    if any(row.get("bound") == "input" for row in rows):
        notes.append(
            f"{INPUT} bound by input: ranks waited more than {INPUT_BOUND:.0%} of the time for their next "
            "batch, and the figure says what the input delivers."
        )
    if name in OF_SPEED and any(row.get("few_steps") and row.get("samples_per_second") for row in rows):
        notes.append(
            f"{FEW} of fewer than {MIN_TIMED_STEPS} steps, at least {MIN_SLOW_STEPS} over a minute or more."
        )
    if name in OF_SPEED:
        notes += _missing(rows)
    if name == NETWORK:
        notes += _of_links(rows)
    if any(row.get("shared_device") for row in rows):
        notes.append("Runs whose workers shared a device have no speed: they tell correctness and memory.")
    return notes


def _of_links(rows: Sequence[Row]) -> list[str]:
    """Say what the figures of links are, and which links weren't as asked."""
    notes = [
        "Expected: computing (one device alone with a worker's part of the batch), what the busiest link "
        "carries of a batch at its measured rate, and the strategy's round trips. Rate and round trip are "
        "the slowest link's, measured before training; /b. is of a global batch, of all hosts."
    ]
    if odd := [f"{row['label']} on {row.get('hardware')}" for row in rows if row.get("link_flag")]:
        notes.append(f"A link gave another rate or round trip than asked: {listed(odd)}.")
    return notes


def _missing(rows: Sequence[Row]) -> list[str]:
    """Say why runs were skipped or have no speed-up, what differs from a baseline, and what wasn't probed."""
    noted: dict[str, list[str]] = {}
    wanting: list[StudyRun] = []
    for row in rows:
        name = f"{row['label']}, {row.get('workers')} w, batch {row.get('batch')}"
        if row["status"] == Status.SKIPPED:
            noted.setdefault(f"Skipped on this machine ({row['run'].error})", []).append(name)
        if row.get("baseline_note"):
            what = "The baseline is another" if row.get("baseline") else "No speed-up"
            noted.setdefault(f"{what} ({row['baseline_note']})", []).append(name)
            if row["baseline_note"].startswith(comparison.NONE):
                wanting.append(row["run"])
    notes = [f"{what}: {listed(names)}." for what, names in noted.items()]
    notes += missing_baseline.notes(wanting, [row["run"] for row in rows])
    unprobed = [row["label"] for row in rows if row.get("samples_per_second") and row["run"].probe is None]
    if unprobed:
        notes.append(f"Without a probe of the machine's speed: {listed(unprobed)}.")
    return notes


def listed(names: Sequence[str], between: str = "; ") -> str:
    """Return the distinct names, the first of them where there are many."""
    names = list(dict.fromkeys(names))
    rest = f"{between}and {len(names) - NAMES} more" if len(names) > NAMES else ""
    return between.join(names[:NAMES]) + rest


def _cell(row: Row, column: Column) -> str:
    text = show(row.get(column.key), column.kind)
    if column.key == "status" and row.get("shared_device"):
        return f"{text}, shared device"
    if text == "-" or column.key not in (*RATES, *RATIOS):
        return text
    ratio = column.key in RATIOS
    if column.key == "speedup" and row.get("speedup_low") is not None:
        text = f"{text} ({show(row['speedup_low'], 'ratio')} to {show(row['speedup_high'], 'ratio')})"
    if row.get("ratio_disturbed" if ratio else "disturbed"):
        text += DISTURBED
    if row.get("bound") == "input":
        text += INPUT
    if column.key == "samples_per_second" and row.get("few_steps"):
        text += FEW
    return f"{text}{PROBE}" if ratio and row.get("probe_flag") else text


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
    if kind == "gap" and value == 0:
        return "0"
    if kind in ("rate", "speed", "milliseconds"):
        return _digits(value)
    forms = {
        "ratio": ".2f",
        "percent": ".0%",
        "accuracy": ".2%",
        "signed": "+.1%",
        "loss": ".4f",
        "gap": ".0e",
        "count": "g",
    }
    return format(value, forms.get(kind, ".4g"))


def _digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:.3g}"


def _scaled(value: float, base: int, units: Sequence[str]) -> str:
    power = 0
    while abs(value) >= base and power < len(units) - 1:
        value, power = value / base, power + 1
    return f"{_digits(value)} {units[power]}"
