"""Show what of a rank's tensors was live over a step, by part, and what had been predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from src.measure.live_bytes import PARTS, total
from src.report import canvas
from src.report.canvas import Drawing, Point
from src.report.runs import Row, StudyRun
from src.report.views import Column, View, show

# One row of a configuration, and of what was measured or predicted of it, has these.
MEMORY = ("cell", "rank", "what", *PARTS, "total", "resident", "slower", "data_source")
PANELS = 6
COLOURS = dict(zip(PARTS, canvas.COLOURS, strict=False))
COLUMNS = (
    Column("label", "strategy"), Column("model", "model"), Column("workers", "workers", "count"),
    Column("batch", "batch", "count"), Column("rank", "rank", "count"), Column("what", "bytes"),
    *(Column(part, part, "bytes") for part in PARTS), Column("total", "all", "bytes"),
    Column("off", "off", "signed"), Column("resident", "resident", "bytes"),
    Column("slower", "slower", "ratio"),
)  # fmt: skip
NOTE = (
    "Live tensors of one step at the moment when they are most, on the rank that has most. Activations are "
    "what forward passes make and hold, exchange are buffers of exchange, other are the batch, a model's "
    "buffers, and what passes and updates make for a moment. Predicted: before training, from tensors "
    "without data; off: by how much of what was measured. Resident: the whole run's peak resident set above "
    "its level after imports, or that of the GPU's allocator, on the rank that has most. Slower: the step "
    "that was followed over the median step; it is one of the warm-up, which isn't timed."
)


def fullest(run: StudyRun) -> tuple[int, Mapping[str, Any]] | None:
    """Return the rank whose live tensors were most, and its record; `None` where none were followed."""
    ranks = {int(rank): found for rank, found in run.live_tensors.items()}
    if not ranks:
        return None
    return max(ranks.items(), key=lambda each: total(each[1]["measured"]))


def rows(summed: Sequence[Row]) -> list[Row]:
    """Return the rows, with the columns `MEMORY`, of configurations from rows of `repeats.summarise`."""
    return [found for row in summed for found in _of_run(row)]


def views(summed: Sequence[Row]) -> list[View]:
    """Return the table of configurations whose tensors were followed, if there are any."""
    shown = rows(summed)
    if not shown:
        return []
    return [
        View(
            "live tensors",
            [column.heading for column in COLUMNS],
            [(str(row["status"]), [show(row.get(each.key), each.kind) for each in COLUMNS]) for row in shown],
            [NOTE],
            [column.kind != "text" for column in COLUMNS],
            [[row.get(column.key) for column in COLUMNS] for row in shown],
        )
    ]


def _of_run(row: Row) -> list[Row]:
    """Return the rows of a configuration: what was measured, and what was predicted if that is known."""
    found = fullest(row["run"])
    if found is None:
        return []
    rank, record = found
    median, measured = row.get("step_seconds_median"), record["measured"]
    found_rows = [
        {
            **{**row, **measured, "rank": rank, "what": "measured", "total": total(measured)},
            "slower": record["seconds"] / median if median else None,
            "resident": row.get("memory_peak_bytes"),
        }
    ]
    if (predicted := record["predicted"]) is not None:
        whole = total(predicted)
        off = whole / total(measured) - 1
        found_rows.append({**row, **predicted, "rank": rank, "what": "predicted", "total": whole, "off": off})
    return found_rows


def over_a_step(points: Sequence[Point]) -> Drawing | None:
    """Draw the live bytes over a step, by part, on the rank that has most of each run."""
    drawing, seen = Drawing(), dict[str, Point]()
    for point in points:
        # Repetitions hold the same tensors.
        if point.run.live_tensors:
            seen.setdefault(f"{point.label} {point.row['model']} {point.row['batch']}", point)
    for point in drawing.some(seen.values(), PANELS, "configurations"):
        found = fullest(point.run)
        assert found is not None
        rank, record = found
        row = point.row
        axis = drawing.panel(
            f"{canvas.series(point).name}: {row['model']}, batch {row['batch']}, rank {rank}", 2.4
        )
        moments = [1e3 * each[0] for each in record["moments"]]
        sizes = [[each[1 + place] / 2**20 for each in record["moments"]] for place in range(len(PARTS))]
        areas = axis.stackplot(moments, sizes, labels=PARTS, colors=[COLOURS[part] for part in PARTS])
        for place, (part, area) in enumerate(zip(PARTS, areas, strict=True)):
            numbers = zip(moments, sizes[place], strict=True)
            drawing.mark(
                area,
                [
                    {"run": point.run.cell, "part": part, "ms": round(ms, 3), "MiB": mib}
                    for ms, mib in numbers
                ],
                whole=f"{point.run.cell}, {part}: most {canvas.number(max(sizes[place]))} MiB",
            )
        axis.set(xlabel="milliseconds of the step that was followed", ylabel="MiB", ylim=(0, None))
        canvas.legend(axis)
    return drawing.or_none()
