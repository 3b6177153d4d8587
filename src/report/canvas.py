"""Provide what every figure of a study needs: the runs that it may show, their looks, panels and axes."""

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

from src.report.runs import Row, StudyRun

# Okabe and Ito's colours, told apart by the colour-blind; the yellow is left out (too pale on white).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
DASHES = ("-", "--", ":", "-.")
MARKERS = "osD^vPX*<>ph"
# More lines than these are named beside the figure: in it they would hide what is drawn.
CROWD = 8
STYLE: dict[Any, Any] = {
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
    """The colour, dash and marker of a strategy in every figure."""

    color: str
    dash: str
    marker: str

    def marked(self, size: float = 4) -> dict[str, Any]:
        """Return matplotlib's options of a line with the strategy's markers, `size` points large."""
        return {"color": self.color, "marker": self.marker, "markersize": size}


@dataclass(frozen=True)
class Point:
    """One run in the figures: its strategy's label, the name of its panel, and its merged row."""

    run: StudyRun
    label: str
    panel: str
    row: Mapping[str, Any]


@dataclass(frozen=True)
class Series:
    """A bar or a line of a figure: a strategy at a number of workers, strong- or weak-scaled."""

    label: str
    workers: int
    weak: bool

    @property
    def name(self) -> str:
        """Return the name in a legend, such as `ddp, 2 w, weak`."""
        return f"{self.label}, {self.workers} w{', weak' if self.weak else ''}"

    def dash(self, look: Look) -> str:
        """Return the line's dash: the strategy's own for one worker, dashed for several, dotted if weak."""
        return look.dash if self.workers == 1 else ":" if self.weak else "--"


def points(runs: Sequence[StudyRun], labels: Mapping[str, str], rows: Mapping[str, Row]) -> list[Point]:
    """Return the runs that a figure may show.

    Frameworks never share a panel, for their times don't compare, nor do original and generated data, nor
    hardware of several names. Labels of strategies and merged rows are by cell.
    """
    known = [run for run in runs if run.metrics and run.comparable]
    several = len({rows[run.cell].get("hardware") for run in known}) > 1
    return [Point(run, labels[run.cell], _panel(rows[run.cell], several), rows[run.cell]) for run in known]


def _panel(row: Row, several: bool) -> str:
    name = "{framework}: {model} on {data}".format(**row, data=data(row))
    return f"{name}, {row['hardware']}" if several else name


def data(row: Mapping[str, Any]) -> str:
    """Return the data of a run for a title: `cifar10 (generated)`."""
    return f"{row['dataset']} ({row.get('data_source') or 'source unknown'})"


def looks(labels: Iterable[str]) -> dict[str, Look]:
    """Give each distinct label a look; where there are more labels than colours, dashes tell them apart."""
    n = len(COLOURS)
    return {
        label: Look(COLOURS[i % n], DASHES[i // n % len(DASHES)], MARKERS[i % len(MARKERS)])
        for i, label in enumerate(dict.fromkeys(labels))
    }


def data_uri(figure: Figure) -> str:
    """Return a figure as an SVG `data:` address, so that a page needn't load it; close the figure."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None}, facecolor="white")
    plt.close(figure)
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode()


def series(point: Point) -> Series:
    """Return the series that a run belongs to; at one worker strong and weak scaling are the same."""
    workers = point.row.get("workers") or 1
    return Series(point.label, workers, workers > 1 and point.row.get("scaling") == "weak")


def panels(points: Sequence[Point], *, by_framework: bool = True) -> dict[str, list[Point]]:
    """Group points by panel; without `by_framework` frameworks share panels, where times don't compare."""
    panels: dict[str, list[Point]] = {}
    for point in points:
        name = point.panel if by_framework else point.panel.split(": ", 1)[1]
        panels.setdefault(name, []).append(point)
    return panels


def median_by(points: Sequence[Point], x: Callable[[Point], Any], metric: str) -> dict[Any, float]:
    """Return the median of `metric` at each value of `x`, in ascending order."""
    values: dict[Any, list[float]] = {}
    for point in points:
        values.setdefault(x(point), []).append(point.row[metric])
    return {key: median(values[key]) for key in sorted(values)}


def legend(figure: Figure, axes: Sequence[Axes], size: float = 7.5, *, beside: bool = True) -> None:
    """Name the lines of each axis in it.

    Where an axis has more than `CROWD` lines, all names stand once beside the figure, which is widened for
    them, or nowhere if not `beside`. `size` is in points.
    """
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
    # A letter is about 0.6 times its size wide, a line 1.6 times as high; a point is 1/72 inch.
    longer = (0.6 * max(map(len, named)) + 6) * size / 72
    figure.set_size_inches(width + longer, max(height, (1.6 * len(named) + 4) * size / 72))
    figure.legend(named.values(), named.keys(), loc="outside right upper", fontsize=size)


def grid(rows: int, columns: int, size: tuple[float, float], **ratios: Any) -> tuple[Figure, list[Axes]]:
    """Make a figure of `rows` x `columns` axes, `size` in inches; `ratios` as matplotlib's `gridspec_kw`."""
    plt.rcParams.update(STYLE)
    figure, axes = plt.subplots(
        rows, columns, figsize=size, squeeze=False, layout="constrained", gridspec_kw=ratios
    )
    return figure, list(axes.flat)
