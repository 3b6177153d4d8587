"""Work out every number of a page's tables again, from the files of the runs.

    python tests/report/recompute_page.py results/quick

Nothing of `src` is used: headings, formulas and roundings stand here again, as docs/metrics.md has them.
"""

from __future__ import annotations

import csv
import functools
import html
import io
import json
import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import unquote

import yaml

from tests.report.recompute import read, recompute, shown

# Marks behind a figure, and headings whose cells aren't numbers.
MARKS = "\N{DAGGER}\N{DOUBLE DAGGER}\N{SECTION SIGN}*"
TEXTS = {
    "strategy", "model", "data", "source", "hardware", "machine", "scaling", "over", "status", "parity",
    "bound by", "metric",
}  # fmt: skip


@dataclass(frozen=True)
class Runs:
    """The runs of one configuration that were measured: their metrics, configurations and surroundings."""

    metrics: list[dict[str, Any]]
    configs: list[dict[str, Any]]
    environments: list[dict[str, Any]]
    blocks: list[tuple[int, int]]

    def middle(self, key: str) -> float | None:
        """The median of a metric."""
        known = [each[key] for each in self.metrics if each.get(key) is not None]
        return median(known) if known else None


class Tables(HTMLParser):
    """Collects a page's tables: the name of each, its headings, and the texts of its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[tuple[str, list[list[str]]]] = []
        self._text: list[str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self.tables.append((dict(attrs).get("data-name") or "", []))
        elif tag == "tr":
            self.tables[-1][1].append([])
        elif tag in ("th", "td"):
            self._text = []

    def handle_data(self, data: str) -> None:
        if self._text is not None:
            self._text.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("th", "td") and self._text is not None:
            self.tables[-1][1][-1].append("".join(self._text).strip())
            self._text = None


def digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 99.95 else f"{value:.3g}"


def scaled(base: int, units: str) -> Callable[[float], str]:
    def form(value: float) -> str:
        steps = [unit for unit in range(len(units.split())) if abs(value) >= base**unit] or [0]
        return f"{digits(value / base ** steps[-1])} {units.split()[steps[-1]]}"

    return form


def seconds(value: float) -> str:
    return f"{digits(value * 1e3)} ms" if value < 1 else f"{digits(value)} s"


def percent(value: float) -> str:
    return f"{value:.0%}"


def accuracy(value: float) -> str:
    return f"{value:.2%}"


def gap(value: float) -> str:
    return f"{value:.0e}" if value else "0"


BYTES, JOULES = scaled(1024, "B KiB MiB GiB TiB"), scaled(1000, "J kJ MJ GJ")
# Headings whose figure is the median of a metric of the runs, and how it is rounded.
MEDIANS: dict[str, tuple[str, Callable[[float], str]]] = {
    "seed": ("seed", "{:g}".format), "workers": ("workers", "{:g}".format), "batch": ("batch", "{:g}".format),
    "samples/s": ("samples_per_second", digits), "step": ("step_seconds_median", seconds),
    "epoch": ("seconds_per_epoch", seconds), "bubble": ("bubble_fraction", percent),
    "epochs": ("epochs", "{:g}".format), "loss": ("loss", "{:.4f}".format),
    "accuracy": ("accuracy", accuracy), "train acc.": ("train_accuracy", accuracy),
    "score": ("score", "{:.4f}".format), "to target": ("seconds_to_target", seconds),
    "used": ("utilization_mean", percent), "busy": ("busy_fraction", percent),
    "input": ("input_wait_fraction", percent), "waited": ("cpu_wait_fraction", percent),
    "stolen": ("steal_fraction", percent), "memory": ("memory_peak_bytes", BYTES),
    "saved": ("saved_tensors_bytes", BYTES), "state": ("state_bytes", BYTES),
    "energy": ("energy_joules", JOULES),
    "payload": ("payload_bytes", BYTES), "helpers": ("helper_cpu_seconds", seconds),
}  # fmt: skip


def wrong_numbers(study: Path) -> list[str]:
    """Return where the page shows another number than the runs' files give, or one that isn't known here."""
    page = Tables()
    page.feed((study / "report.html").read_text())
    figures = recompute(study)
    rows = read(study / "tables" / "scaling.csv")
    rounding = {row["cell"]: row["parity_reference"] for row in read(study / "tables" / "accuracy.csv")}
    peaks = [known for row in rows for known in runs_of(study, row["runs"]).environments]
    found = []
    for name, (headings, *shown_rows) in page.tables:
        if name not in ("scaling", "accuracy", "utilization"):
            continue
        # What `capacity` measures has no accuracy.
        own = [row for row in rows if name != "accuracy" or row["strategy"] != "capacity"]
        if len(shown_rows) != len(own):
            found.append(f"{name}: {len(shown_rows)} rows of {len(own)}")
        for row, cells in zip(own, shown_rows, strict=False):
            runs, base = runs_of(study, row["runs"]), runs_of(study, row["baseline"])
            bases = runs_of(study, rounding[row["cell"]] or "")
            # A gap of rounding may be 0.
            rounded = bases.middle("rounding_gap")
            rounded = runs.middle("rounding_gap") if rounded is None else rounded
            expected = {
                **{head: (runs.middle(key), form) for head, (key, form) in MEDIANS.items()},
                **derived(runs, base, figures[row["cell"]], peaks),
                "rounding": (rounded, gap),
            }
            for heading, text in zip(headings, cells, strict=True):
                if heading in TEXTS:
                    continue
                value, form = expected.get(heading, (None, str))
                mine = "-" if value is None else form(value)
                if heading == "speed-up":
                    mine = shown(figures[row["cell"]])
                if text.rstrip(MARKS) != mine:
                    found.append(f"{row['cell']}: {heading} {text}, and the runs give {mine}")
    found += wrong_figures(study, (study / "report.html").read_text())
    shown_cuts = [row[1:] for name, (_, *rows) in page.tables if name == "cuts" for row in rows]
    return found + ([] if shown_cuts == cuts(study) else ["the cuts are others"])


# Charts of which a row is one run, or the median of a configuration's: the column, and the metric in it.
DRAWN = {
    "throughput": ("training samples/s", "samples_per_second"),
    "time-of-an-epoch": ("seconds of training per epoch", "seconds_per_epoch"),
    "final-accuracy": ("test accuracy", "accuracy"),
}
AGAINST = {
    "samples/s": ("samples_per_second", 1.0),
    "test accuracy": ("accuracy", 1.0),
    "peak memory of a device, MiB": ("memory_peak_bytes", 2.0**20),
}


def wrong_figures(study: Path, page: str) -> list[str]:
    """Return which numbers that charts draw, by their CSV, aren't those of the runs' files."""
    listed = {row["cell"]: row for row in read(study / "tables" / "runs.csv")}
    scaling, figures = read(study / "tables" / "scaling.csv"), recompute(study)
    groups = [runs_of(study, row["runs"]) for row in scaling]
    rates = {cell: own.metrics[0]["samples_per_second"] for cell in listed for own in [runs_of(study, cell)]}
    found = []
    for name, address in re.findall(r'download="([\w-]+)\.csv" href="data:text/csv[^,]*,([^"]*)"', page):
        for row in csv.DictReader(io.StringIO(unquote(html.unescape(address)))):
            pairs: list[tuple[str, float | None]] = []
            alike = _group(row["run"], groups)
            if name in DRAWN:
                column, key = DRAWN[name]
                own = runs_of(study, row["run"]) if row["run"] in listed else alike
                pairs = [(row[column], own and own.middle(key))]
            elif name == "what-speed-costs":
                known = {column: AGAINST[column] for column in AGAINST if row.get(column)}
                pairs = [
                    (row[column], alike and (alike.middle(key) or 0) / unit)
                    for column, (key, unit) in known.items()
                ]
            elif name == "speed-up" and row["run"] in listed and row["speed-up"]:
                bases = [rates[cell] for cell in listed[row["run"]]["baseline"].split()]
                same = [
                    rates[cell]
                    for cell in listed[row["run"]]["baseline"].split()
                    if listed[cell]["repetition"] == listed[row["run"]]["repetition"]
                ]
                own = runs_of(study, row["run"])
                pairs = [(row["speed-up"], rates[row["run"]] / median(same or bases))]
                pairs.append((row["workers"], own.metrics[0]["workers"]))
            elif name == "speed-up" and row["run"].endswith(", median"):
                label = row["run"].removesuffix(", median").replace("measured capacity", "capacity")
                known_rows = [r for r in scaling if (r["strategy"], r["workers"]) == (label, row["workers"])]
                figure = figures[known_rows[0]["cell"]] if known_rows else {}
                columns = {"speed-up": "speedup", "95 % from": "low", "to": "high"}
                pairs = [(row[column], figure.get(key)) for column, key in columns.items()]
            found += [
                f"{name}: {row['run']} {text}, and the runs give {value}"
                for text, value in pairs
                if value is None or text != f"{value:.5g}"
            ]
    return found


def _group(name: str, groups: Sequence[Runs]) -> Runs | None:
    """Return the runs that a chart calls so, as `ddp, 2 w, median of 3`."""
    for runs in groups:
        first = runs.metrics[0]
        weak = ", weak" if first["scaling"] == "weak" else ""
        if name.partition(", median of ")[0] == f"{first['strategy']}, {first['workers']} w{weak}":
            return runs
    return None


def cuts(study: Path) -> list[list[str]]:
    """Return what the table of cuts says of each stage of each run, but for the run's name."""
    plans = [study / "runs" / row["cell"] / "partition.json" for row in read(study / "tables" / "runs.csv")]
    return [
        [
            f"{number} of {len(stages)}", f"{stage['start']} to {stage['stop'] - 1}", stage["first"],
            f"{stage['parameters']:,}", seconds(stage["seconds"]), seconds(stage["transfer_seconds"]),
            BYTES(stage["memory_bytes"]),
            f"{len(stage['sends'])}: {BYTES(stage['sent_bytes'])}" if stage["sends"] else "-",
        ]
        for plan in plans
        if plan.exists()
        for stages in [json.loads(plan.read_text())["stages"]]
        for number, stage in enumerate(stages)
    ]  # fmt: skip


def derived(
    runs: Runs, base: Runs, figures: dict[str, float | None], peaks: Sequence[dict[str, Any]]
) -> dict[str, tuple[float | None, Callable[[float], str]]]:
    """Return the figures that are worked out from several metrics, by heading."""
    workers, config = runs.metrics[0]["workers"], runs.configs[0]
    times = dict(zip(base.blocks, (each["train_seconds"] for each in base.metrics), strict=True))
    ratios = [
        times.get(block, median(times.values())) / workers / each["train_seconds"]
        for block, each in zip(runs.blocks, runs.metrics, strict=True)
        if times and same_amount(each, base.metrics[0])
    ]
    speedup = figures["speedup"]
    schedule = config["strategy"].get("schedule")
    waiting = workers - 1
    peak = max((each["peak_flops"] for each in peaks if each.get("peak_flops")), default=None)
    used = [
        each["flops_per_sample"] * each["samples_per_second"] / (workers * peak)
        for each in runs.metrics
        if peak and each.get("flops_per_sample") and each.get("samples_per_second")
    ]
    alone = runs.metrics[0]["workers"] == 1 and speedup is not None
    return {
        "effic.": (None if speedup is None else speedup / workers, percent),
        "own eff.": (1.0 if alone else None, percent),
        "T1/(N TN)": (median(ratios) if ratios else None, percent),
        "ideal b.": (waiting / (config["microbatches"] + waiting) if schedule == "gpipe" else None, percent),
        "gap": (figures["gap"], gap),
        "MFU": (median(used) if used else None, percent),
    }


def same_amount(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two runs have trained on as many samples."""
    amounts = [each["batches"] * each["batch"] for each in (one, other)]
    return math.isclose(*amounts) and one["status"] == other["status"] == "ok"


def runs_of(study: Path, cells: str) -> Runs:
    """Read the runs of some cells."""
    listed = {row["cell"]: row for row in read(study / "tables" / "runs.csv")}
    folders = [study / "runs" / cell for cell in cells.split()]
    metrics, configs, environments = (
        [_parsed(folder / name) for folder in folders]
        for name in ("metrics.json", "config.yaml", "environment.json")
    )
    return Runs(
        metrics,
        configs,
        environments,
        [
            (each["seed"], int(float(listed[folder.name]["repetition"])))
            for each, folder in zip(metrics, folders, strict=True)
        ],
    )


def _parsed(path: Path) -> Any:
    return _parsed_as_written(path, path.stat().st_mtime_ns)


@functools.cache
def _parsed_as_written(path: Path, written: int) -> Any:
    """Parse a file once as long as it stays as it is; a page is held against the same runs many times."""
    text = path.read_text()
    return json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)


if __name__ == "__main__":
    wrong = wrong_numbers(Path(sys.argv[1]))
    print("\n".join(wrong) or "every number of the page's tables is as its runs' files give it")
    sys.exit(bool(wrong))
