"""Show what runs exchange in a step, by the axis of the mesh along which they do and by the kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from src.report.runs import Row
from src.report.views import Column, View, show

# One row of a configuration, axis and kind has these; figures are of the rank that hands over most.
EXCHANGE = ("cell", "axis", "kind", "ranks", "exchanges", "bytes", "ring_bytes", "data_source")
FIGURES = ("exchanges", "bytes", "ring_bytes")
COLUMNS = (
    Column("label", "strategy"), Column("model", "model"), Column("workers", "workers", "count"),
    Column("batch", "batch", "count"), Column("axis", "axis"), Column("kind", "kind"),
    Column("ranks", "ranks", "count"), Column("exchanges", "a step", "count"),
    Column("bytes", "handed over", "bytes"), Column("ring_bytes", "sent by a ring", "bytes"),
)  # fmt: skip
NOTE = (
    "Of a step, on the rank that hands over most. Handed over: its own part of an all-gather, its whole "
    "tensor of an all-reduce or a reduce-scatter, what it sends point to point. By a ring each rank sends as "
    "much on a network. Configurations with one kind of exchange alone are left out."
)


def exchanges(rows: Sequence[Row]) -> list[Row]:
    """Return the rows, with the columns `EXCHANGE`, of configurations from rows of `repeats.summarise`."""
    return [found for row in rows for found in _of_run(row)]


def _of_run(row: Row) -> list[Row]:
    by_kind: dict[tuple[Any, ...], Row] = {}
    for each in row["run"].exchanges:
        key = each["axis"], each["kind"], each["ranks"]
        known = by_kind.setdefault(key, {**row, **each})
        known |= {figure: max(known[figure], each[figure]) for figure in FIGURES}
    return list(by_kind.values())


def views(rows: Sequence[Row]) -> list[View]:
    """Return the table of configurations that exchange along several axes, or in several ways, if any."""
    shown = [found for row in rows if len(own := _of_run(row)) > 1 for found in own]
    if not shown:
        return []
    texts = [{**row, "kind": row["kind"].replace("_", " ")} for row in shown]
    return [
        View(
            "exchange by axis",
            [column.heading for column in COLUMNS],
            [(str(row["status"]), [show(row.get(each.key), each.kind) for each in COLUMNS]) for row in texts],
            [NOTE],
            [column.kind != "text" for column in COLUMNS],
            [[row.get(column.key) for column in COLUMNS] for row in texts],
        )
    ]
