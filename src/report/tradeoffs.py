"""Draw what a throughput costs: memory, energy, money, accuracy, and the way to a target accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from matplotlib.axes import Axes

from src.report import canvas, figures
from src.report.canvas import Drawing, Look, Point, Series
from src.report.pareto import pareto
from src.report.verdict.objective import COST

RATE = "samples_per_second"
# By metric: the heading, and what its figures are divided by for it.
AGAINST = {
    "accuracy": ("test accuracy", 1.0),
    "memory_peak_bytes": ("peak memory of a device, MiB", 2.0**20),
    "energy_joules": ("energy, kJ", 1e3),
    COST: ("cost of training", 1.0),
}
# Above so many series a panel's legend names their strategies alone.
NAMED = 10


def tradeoffs(points: Sequence[Point], look: Mapping[str, Look]) -> Drawing | None:
    """Draw each of `AGAINST` over throughput: a mark is a series' medians, larger for more workers.

    A line joins the Pareto front of the medians: those that no other one beats in both. Frameworks never
    share a panel, and a metric that fewer than two series have measured has none.
    """
    drawing = Drawing()
    panels: list[tuple[str, str, list[tuple[Series, list[Point]]]]] = []
    for metric in AGAINST:
        known = [p for p in points if None not in (p.row.get(RATE), p.row.get(metric))]
        for name, panel in canvas.panels(known).items():
            groups = list(canvas.grouped(panel, look).items())
            if len(groups) > 1:
                panels.append((name, metric, groups))
    for name, metric, groups in drawing.some(panels, canvas.PANELS, "panels"):
        _draw(drawing, name, metric, drawing.some(groups, 2 * canvas.BARS, "marks"), look)
    return drawing.or_none()


def _draw(
    drawing: Drawing,
    name: str,
    metric: str,
    groups: Sequence[tuple[Series, Sequence[Point]]],
    look: Mapping[str, Look],
) -> None:
    heading, unit = AGAINST[metric]
    axis = drawing.panel(f"{name}: {heading.split(',')[0]}")
    if metric == COST:
        heading = f"{heading}, {groups[0][1][0].row['currency']}"
    marks = [
        tuple(median(point.row[key] for point in alike) for key in (RATE, metric)) for _, alike in groups
    ]
    best = front(marks, more=metric == "accuracy")
    if len(best) > 1:
        _join(axis, [(x, y / unit) for x, y in best])
    named: set[str] = set()
    for (series, _), (x, y) in zip(groups, marks, strict=True):
        label = series.name if len(groups) <= NAMED else series.label
        style = look[series.label]
        (mark,) = axis.plot(
            [x], [y / unit], style.marker, color=style.color, markersize=5 + min(series.workers, 16) ** 0.5,
            linestyle="", label=None if label in named else label, markeredgecolor=canvas.PAGE,
        )  # fmt: skip
        named.add(label)
        on_front = "yes" if (x, y) in best else "no"
        drawing.mark(
            mark, [{"run": series.name, "samples/s": x, heading: y / unit, "on the front": on_front}]
        )
    # Marks have room at the edges, and all but accuracies begin at zero.
    axis.margins(0.12)
    axis.autoscale_view()
    axis.set(xlabel="training samples/s", ylabel=heading)
    axis.set_xlim(left=0)
    if metric != "accuracy":
        axis.set_ylim(bottom=0)
    canvas.legend(axis)


def front(marks: Sequence[tuple[float, ...]], *, more: bool) -> list[tuple[float, float]]:
    """Return the Pareto front of (throughput, other figure), from the largest throughput down.

    With `more` a larger figure is the better one.
    """
    sign = -1 if more else 1
    return [(-x, sign * y) for x, y in pareto((-x, sign * y) for x, y in marks)]


def _join(axis: Axes, best: Sequence[tuple[float, float]]) -> None:
    xs, ys = zip(*best, strict=True)
    axis.plot(xs, ys, color=canvas.SOFT, linewidth=1, zorder=1, label="Pareto front")


def targets(points: Sequence[Point], look: Mapping[str, Look]) -> Drawing | None:
    """Draw the time and the samples that each series took to its target accuracy, one panel a target."""
    drawing = Drawing()
    for metric, heading in {"seconds_to_target": "seconds", "samples_to_target": "samples"}.items():
        reached = [replace(p, panel=f"{p.panel}, to {p.run.get('target_accuracy')}") for p in points]
        reached = [replace(p, row={**p.row, "samples_to_target": _samples(p)}) for p in reached]
        one = figures.bars(reached, look, metric, f"{heading} of training to the target accuracy")
        if one:
            drawing.panels |= {f"{title}: {heading}": figure for title, figure in one.panels.items()}
            drawing.numbers += one.numbers
            drawing.notes += one.notes
    return drawing.or_none()


def _samples(point: Point) -> int | None:
    steps, batch = point.row.get("steps_to_target"), point.run.global_batch
    return None if steps is None or batch is None else int(steps * batch)
