"""Choose the rows that a claim of a paper compares, and average them; refuse to mix what doesn't compare."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from src.measure.arithmetic import mean
from src.report import comparison, repeats
from src.report.runs import Row
from src.run.status import MEASURED

Claim = Mapping[str, Any]
# Rows with the same of these differ by seed and repetition alone, and may be averaged.
ALIKE = (
    "framework", "strategy", "label", "model", "dataset", "data_source", "precision",
    "hardware", "workers", "batch", "scaling",
)  # fmt: skip


class UnlikeError(ValueError):
    """A claim's rows don't compare; the message says why, and what the claim must name."""


def select(rows: Sequence[Row], wanted: Mapping[str, Any] | None) -> list[Row]:
    """Return the rows that have, for every key of `wanted`, its value or one of its values."""
    choices = {key: value if isinstance(value, list) else [value] for key, value in (wanted or {}).items()}
    return [row for row in rows if all(row.get(key) in values for key, values in choices.items())]


def usable(rows: Sequence[Row], claim: Claim) -> list[Row]:
    """Return the rows with a finite figure of the claim's metric, of runs that may be compared."""
    metric = claim["metric"]
    measured = [row for row in rows if row["status"] in MEASURED and not row.get("shared_device")]
    return [row for row in measured if row.get(metric) is not None and math.isfinite(row[metric])]


def groups(rows: Sequence[Row], claim: Claim) -> dict[str, list[Row]]:
    """Return the usable rows by group, named by the values of the keys `within`.

    Raises:
        UnlikeError: for a group of runs of different software, of different hardware that the claim doesn't
            name, of two frameworks whose times it compares, or of original and generated data.
    """
    within = claim.get("within")
    keys = [within] if isinstance(within, str) else list(within or [])
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in _named(usable(rows, claim), claim):
        found.setdefault(tuple(row.get(key) for key in keys), []).append(row)
    ordered = sorted(
        found.items(), key=lambda item: [(isinstance(v, str), v) for v in item[0] if v is not None]
    )
    for _, group in ordered:
        _check_ground(group, claim)
    names = {
        values: ", ".join(f"{key} {value}" for key, value in zip(keys, values, strict=True))
        for values in found
    }
    return {f"{names[values]}: " if keys else "": group for values, group in ordered}


def _named(rows: Sequence[Row], claim: Claim) -> list[Row]:
    """Return the rows that a claim compares: those of its sides or its order, or all where it has neither."""
    sides = [claim[key] for key in ("of", "to") if key in claim]
    sides += [
        entry if isinstance(entry, Mapping) else {"strategy": entry} for entry in claim.get("order") or []
    ]
    chosen = [id(row) for side in sides for row in select(rows, side)]
    return [row for row in rows if id(row) in chosen] if sides else list(rows)


def _check_ground(group: Sequence[Row], claim: Claim) -> None:
    """Raise `UnlikeError` where the rows of a group stand on different ground."""
    frameworks = {row.get("framework") for row in group}
    if len(frameworks) > 1 and is_speed(claim["metric"]):
        raise UnlikeError(f"times of {' and '.join(sorted(map(str, frameworks)))} don't compare; name one")
    sources = {str(row["data_source"]) for row in group if row.get("data_source")}
    if len(sources) > 1:
        raise UnlikeError(f"{' and '.join(sorted(sources))} data don't compare; name one by data_source")
    known = [row["run"] for row in group if row.get("run") is not None]
    for run in known[1:]:
        if not comparison.same_software(known[0], run):
            raise UnlikeError("; ".join(comparison.differences(known[0], run)))
        if not (comparison.same_hardware(known[0], run) or _names_hardware(claim)):
            raise UnlikeError("; ".join(comparison.differences(known[0], run)))


def _names_hardware(claim: Claim) -> bool:
    return "hardware" in str([claim.get(key) for key in ("select", "of", "to", "order", "within", "over")])


def is_speed(metric: str) -> bool:
    """Return whether a metric is a time or a throughput, which repetitions scatter."""
    return "seconds" in metric or "per_second" in metric


def average(rows: Sequence[Row], metric: str) -> float | None:
    """Return the mean of a metric over seeds and repetitions of one configuration; `None` without rows.

    Raises:
        UnlikeError: for rows of several configurations, whose mean would say nothing.
    """
    kinds = {tuple(str(row.get(key)) for key in ALIKE): row for row in rows}
    if len(kinds) > 1:
        differing = [key for key in ALIKE if len({str(row.get(key)) for row in rows}) > 1]
        raise UnlikeError(f"runs of different {', '.join(differing)} don't make one figure; name one")
    return mean([row[metric] for row in rows])


def interval(of: Sequence[Row], to: Sequence[Row], metric: str) -> tuple[float, float] | None:
    """Return the 95 % interval of the ratio of two sides, `None` without repetitions that can be paired."""
    tables = [
        {comparison.block(row["run"]): row[metric] for row in side if row.get("run") and row[metric] > 0}
        for side in (of, to)
    ]
    noise = repeats.pooled_noise(tables)
    return repeats.ratio_interval(repeats.paired_ratios(*tables), noise)


def means_by(rows: Sequence[Row], over: str, metric: str) -> dict[float, float]:
    """Average `metric` over the runs at each value of `over`, whatever else differs between these."""
    points: dict[float, list[Row]] = {}
    for row in rows:
        if row.get(over) is not None:
            points.setdefault(row[over], []).append(row)
    return {x: value for x, alike in points.items() if (value := average(alike, metric)) is not None}


def marks(rows: Sequence[Row]) -> str:
    """Return a remark where others disturbed one of the runs, else nothing."""
    return " (disturbed runs among them)" if any(row.get("disturbed") for row in rows) else ""
