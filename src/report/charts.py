"""List the charts of a study's page in their order: speed, what it costs, learning, activity."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from src.report import activity, canvas, figures, memory, svg
from src.report.canvas import Drawing, Look, Point
from src.report.parity_gaps import parity_gaps
from src.report.runs import Row
from src.report.step_time import step_times
from src.report.steps_figure import steps_over_batches
from src.report.tradeoffs import targets, tradeoffs

# Characters that an address may have inside a quoted attribute, so that few take three bytes.
PLAIN = " ,;:/()[]=.-_+*!@$?|"


@dataclass(frozen=True)
class Chart:
    """A chart on the page.

    Attributes:
        name: for files and links.
        title: its heading.
        caption: what its marks mean, and what of it isn't drawn.
        panels: each panel's file name and its `<svg>` element.
        csv: the numbers drawn, as a `data:` address.
    """

    name: str
    title: str
    caption: str
    panels: list[tuple[str, str]]
    csv: str


Draw = Callable[[Sequence[Point], Mapping[str, Look]], Drawing | None]


@dataclass(frozen=True)
class Kind:
    """A kind of chart.

    Attributes:
        title: its heading.
        caption: what its marks mean.
        draw: the function that draws it.
        trained: whether it shows what a model has learned, or what that took: not of `capacity`.
    """

    title: str
    caption: str
    draw: Draw
    trained: bool = False


KINDS = (
    Kind(
        "Throughput",
        "A bar is the median run, a dot one run, hollow where others disturbed it; w = workers. Frameworks "
        "stand in panels of their own, for their times don't compare.",
        lambda points, look: figures.bars(points, look, "samples_per_second", "training samples/s"),
    ),
    Kind(
        "Speed-up",
        "Over the baseline that the table names, beside the ideal (theoretical) line; a small dot is one "
        "run, a line their median, a broad bar the 95 % interval.",
        figures.speedups,
    ),
    Kind(
        "Time of an epoch",
        "Training alone: start-up and evaluation are left out. Bars and dots as above.",
        lambda points, look: (
            None
            if figures.swept(points)
            else figures.bars(points, look, "seconds_per_epoch", "seconds of training per epoch")
        ),
        trained=True,
    ),
    Kind(
        "What speed costs",
        "Accuracy, memory, energy where power was measured, and cost where devices have prices, against "
        "throughput. A mark is a configuration's median, larger for more workers. The line joins the Pareto "
        "front, on which no other one has both figures better; it takes medians as they are, and what lies "
        "near it may be as good.",
        tradeoffs,
        trained=True,
    ),
    Kind(
        "Where a step's time goes",
        "Means over timed steps, ranks and runs. Exchange includes waiting for the others in it; a stage of "
        "a cut model waits for its neighbours, sending included. A dotted, blank part is time of which the "
        "records don't tell computing from exchanging.",
        step_times,
    ),
    Kind(
        "Accuracy and loss while training",
        "On the test set; dashed lines have several workers, dotted ones are weak-scaled.",
        lambda points, look: figures.curves(points, look, "epoch"),
        trained=True,
    ),
    Kind(
        "Accuracy and loss over time",
        "The same curves against seconds of training: who is ahead at an equal time. Lines as above.",
        lambda points, look: figures.curves(points, look, "train_seconds"),
        trained=True,
    ),
    Kind(
        "Time and samples to accuracy",
        "Up to the first evaluation that reached the target; runs that never did have no bar.",
        targets,
        trained=True,
    ),
    Kind(
        "Steps to accuracy over batches",
        "Both axes are logarithmic. A dot is a run with the rate that was best with its batch. The line is "
        "a fit of S = S_min (1 + B_crit / B); along the dashed one all batches would need as many samples.",
        steps_over_batches,
        trained=True,
    ),
    Kind(
        "Final accuracy",
        "On the test set, when training ended.",
        lambda points, look: (
            None
            if figures.learned(points) or figures.swept(points)
            else figures.bars(points, look, "accuracy", "test accuracy")
        ),
        trained=True,
    ),
    Kind(
        "Against the batch",
        "On a logarithmic axis; dashed lines have several workers, dotted ones are weak-scaled.",
        figures.batches,
        trained=True,
    ),
    Kind(
        "Parity",
        "The largest difference of a run's first ten losses from the single run's, on a logarithmic axis; "
        "parity holds up to the line.",
        parity_gaps,
    ),
    Kind(
        "Staleness",
        "How many updates the parameters had between those that a gradient is of and its own. What "
        "each worker did is in its run's workers.csv.",
        activity.staleness,
    ),
    Kind(
        "Live tensors over a step",
        "Bytes of tensors by part, on the rank that has most, in a step of the warm-up that was followed "
        "operation by operation, and so took longer than others.",
        lambda points, _: memory.over_a_step(points),
    ),
    Kind("Utilisation over time", "One line a device, each panel one run.", activity.traces),
    Kind(
        "Traffic over time",
        "What each host sent, headers included, of runs whose network no other process uses.",
        activity.traffic,
    ),
    Kind(
        "What stages and workers do",
        "The first recorded steps of runs whose model is cut, or whose workers are asynchronous, with a "
        "parameter server; blank or grey is idle. Beside a schedule's steps is one simulated of the same "
        "passes. The whole record is each run's timeline.json, for Perfetto or chrome://tracing.",
        lambda points, _: activity.timelines(points),
    ),
)


def charts(points: Sequence[Point], look: Mapping[str, Look], inliner: svg.Inliner) -> list[Chart]:
    """Draw the charts that this study has runs for."""
    found: list[Chart] = []
    for kind in KINDS:
        shown = [point for point in points if point.run.trains] if kind.trained else points
        if drawing := kind.draw(shown, look):
            name = svg.file_name(kind.title)
            panels = [
                (f"{name}-{svg.file_name(title)}", inliner.inline(figure, f"{kind.title}, {title}"))
                for title, figure in drawing.panels.items()
            ]
            caption = " ".join([kind.caption, *dict.fromkeys(drawing.notes)])
            found.append(Chart(name, kind.title, caption, panels, csv_address(drawing.numbers)))
    return found


def csv_address(rows: Sequence[Row]) -> str:
    """Return rows as a CSV file in a `data:` address, with the columns of all."""
    buffer = io.StringIO()
    columns = dict.fromkeys(key for row in rows for key in row)
    writer = csv.DictWriter(buffer, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: canvas.number(value) for key, value in row.items()} for row in rows)
    return "data:text/csv;charset=utf-8," + quote(buffer.getvalue(), safe=PLAIN)
