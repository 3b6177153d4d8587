"""What every figure of a study stands on: the runs it may show, their looks, panels and axes."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from src.report.runs import Row, Run

# Okabe and Ito's colours, told apart by the colour-blind; the yellow is left out (too pale on white).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
DASHES = ("-", "--", ":", "-.")
MARKERS = "osD^vPX*<>ph"
# More lines than these are named beside the figure: in it they would hide what is drawn.
CROWD = 8
STYLE = {
    **{"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True},
    **{
        "grid.color": "#e3e3e3",
        "axes.axisbelow": True,
        "legend.frameon": False,
        "svg.hashsalt": "scaleguide",
    },
}


@dataclass(frozen=True)
class Look:
    """A strategy's colour, dash and marker."""

    color: str
    dash: str
    marker: str


@dataclass(frozen=True)
class Point:
    """One run in the figures: its strategy's label and panel, and its flat row."""

    run: Run
    label: str
    panel: str
    row: Mapping[str, Any]


@dataclass(frozen=True)
class Series:
    """What one bar or line stands for: a strategy at a number of workers, strong- or weak-scaled."""

    label: str
    workers: int
    weak: bool

    @property
    def name(self) -> str:
        """As a legend says it: `ddp, 2 w, weak`."""
        return f"{self.label}, {self.workers} w{', weak' if self.weak else ''}"

    def dash(self, look: Look) -> str:
        """The strategy's own at one worker, dashed at several, dotted where they are weak-scaled."""
        return look.dash if self.workers == 1 else ":" if self.weak else "--"


def points(runs: Sequence[Run], labels: Mapping[str, str], rows: Mapping[str, Row]) -> list[Point]:
    """The runs that a figure may show. Frameworks never share a panel: their times don't compare."""
    panel = "{framework}: {model} on {dataset}"
    known = [run for run in runs if run.metrics and run.comparable]
    return [Point(run, labels[run.cell], panel.format(**rows[run.cell]), rows[run.cell]) for run in known]


def looks(labels: Iterable[str]) -> dict[str, Look]:
    """One look for each distinct label; past the colours, dashes tell them apart."""
    n = len(COLOURS)
    return {
        label: Look(COLOURS[i % n], DASHES[i // n % len(DASHES)], MARKERS[i % len(MARKERS)])
        for i, label in enumerate(dict.fromkeys(labels))
    }


def data_uri(figure: Figure) -> str:
    """The figure as an SVG `data:` address, so that the page loads nothing; closes the figure."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None}, facecolor="white")
    plt.close(figure)
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode()


def series(point: Point) -> Series:
    """The series that a run belongs to; at one worker strong and weak scaling are the same."""
    workers = point.row.get("workers") or 1
    return Series(point.label, workers, workers > 1 and point.row.get("scaling") == "weak")


def panels(found: Sequence[Point], *, by_framework: bool = True) -> dict[str, list[Point]]:
    """The points of each panel; without `by_framework` frameworks share one, which times may not."""
    panels: dict[str, list[Point]] = {}
    for point in found:
        name = point.panel if by_framework else point.panel.split(": ", 1)[1]
        panels.setdefault(name, []).append(point)
    return panels


def median_by(found: Sequence[Point], x: Callable[[Point], Any], metric: str) -> dict[Any, float]:
    """The median of `metric` at each value of `x`, in order."""
    values: dict[Any, list[float]] = {}
    for point in found:
        values.setdefault(x(point), []).append(point.row[metric])
    return {key: median(values[key]) for key in sorted(values)}


def legend(figure: Figure, axes: Sequence[Axes], size: float = 7.5, *, beside: bool = True) -> None:
    """Names each axis's lines in it; of a crowd all names once, `beside` the figure, which grows, or none."""
    known = [axis.get_legend_handles_labels() for axis in axes]
    if max(len(names) for _, names in known) <= CROWD:
        for axis, (_, names) in zip(axes, known, strict=True):
            if names:
                axis.legend(fontsize=size)
        return
    if not beside:
        return
    named = {name: handle for handles, names in known for handle, name in zip(handles, names, strict=True)}
    width, height = figure.get_size_inches()
    # A letter is about 0.6 of its size wide, a line 1.6 high; a point is 1/72 inch.
    longer = (0.6 * max(map(len, named)) + 6) * size / 72
    figure.set_size_inches(width + longer, max(height, (1.6 * len(named) + 4) * size / 72))
    figure.legend(named.values(), named.keys(), loc="outside right upper", fontsize=size)


def grid(rows: int, columns: int, size: tuple[float, float], **ratios: Any) -> tuple[Figure, list[Axes]]:
    """A figure of `rows` x `columns` axes, `size` in inches; `ratios` as matplotlib's `gridspec_kw`."""
    plt.rcParams.update(STYLE)
    figure, axes = plt.subplots(
        rows, columns, figsize=size, squeeze=False, layout="constrained", gridspec_kw=ratios
    )
    return figure, list(axes.flat)
