"""Provide what every figure of a study needs: the runs that it may show, their looks, panels and marks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from textwrap import fill
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from src.report import palette
from src.report.runs import Row, StudyRun

COLOURS = tuple(colour.light for colour in palette.SERIES)
INK, SOFT, LINE, PAGE = (c.light for c in (palette.INK, palette.SOFT, palette.LINE, palette.PAGE))
DASHES = ("-", "--", ":", "-.")
MARKERS = "osD^vPX*<>ph"
# Inches of a panel's width, which is that of a phone's screen; letters on a line of its title and its labels.
WIDTH, TITLE, LABEL = 4.7, 52, 30
# What a chart has at most of panels, and a panel of bars and of lines; of more some are taken evenly.
PANELS, BARS, LINES = 8, 30, 16
STYLE: dict[Any, Any] = {
    **{"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True},
    **{"axes.titlesize": 9, "axes.titleweight": "bold", "axes.titlelocation": "left"},
    **{"text.color": INK, "axes.labelcolor": INK, "xtick.labelcolor": INK, "ytick.labelcolor": INK},
    **{"axes.edgecolor": SOFT, "xtick.color": SOFT, "ytick.color": SOFT, "grid.color": LINE},
    **{"axes.axisbelow": True, "legend.frameon": False, "svg.hashsalt": "scaleguide"},
    # Text stays text, in the fonts of whoever reads.
    **{"svg.fonttype": "none", "font.family": "DejaVu Sans"},
}
# Inches of a line of marks, such as a bar, and of all else in a panel of them.
BAR, REST = 0.27, 0.85


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
    batch: int | None = None

    @property
    def name(self) -> str:
        """Return the name in a legend, such as `ddp, 2 w, weak`."""
        batch = "" if self.batch is None else f", batch {self.batch}"
        return f"{self.label}, {self.workers} w{', weak' if self.weak else ''}{batch}"

    def dash(self, look: Look) -> str:
        """Return the line's dash: the strategy's own for one worker, dashed for several, dotted if weak."""
        return look.dash if self.workers == 1 else ":" if self.weak else "--"


@dataclass
class Drawing:
    """The panels of one chart, each a figure by its title, and the numbers that are drawn in them."""

    panels: dict[str, Figure] = field(default_factory=dict)
    numbers: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def panel(self, title: str, height: float = 3.0) -> Axes:
        """Add a panel of so many inches' height, and return its axes."""
        title = title if title not in self.panels else f"{title} ({len(self.panels) + 1})"
        self.panels[title], (axis,) = grid(1, 1, (WIDTH, height))
        axis.set_title(fill(title, TITLE), x=0)
        return axis

    def mark(self, artist: Artist, rows: Sequence[Row], *, whole: str | None = None) -> None:
        """Note what an artist shows: a row of numbers for each of its dots or bars, which they say on hover.

        With `whole` the artist says that, and its parts nothing.
        """
        self.numbers += rows
        artist.set_gid(json.dumps([whole] if whole is not None else [text(row) for row in rows]))

    def lined(
        self, points: Sequence[Point], look: Mapping[str, Look], what: str
    ) -> Iterator[tuple[Axes, list[tuple[Series, list[Point]]]]]:
        """Yield the axes of each panel with a line for each of several series, and each series with its runs.

        The lines, from above, are at 0, 1, ...; when the caller goes on, they get the names of their series.
        `what` they are stands in the note on those that aren't drawn.
        """
        several = [
            (name, known) for name, panel in panels(points).items() if len(known := grouped(panel, look)) > 1
        ]
        for name, known in self.some(several, PANELS, "panels"):
            groups = self.some(known.items(), BARS, what)
            count = sum(1 + folded(series.name).count("\n") for series, _ in groups)
            axis = self.panel(name, REST + BAR * count)
            yield axis, groups
            name_lines(axis, groups)

    def some(self, things: Iterable[Any], most: int, what: str) -> list[Any]:
        """Return at most so many things, taken evenly from all, and note how many there are."""
        known = list(things)
        if len(known) > most:
            self.notes.append(f"{most} of {len(known)} {what} are drawn, taken evenly from all.")
        return evenly(known, most)

    def or_none(self) -> Drawing | None:
        """Return this, or `None` if it has no panel."""
        return self if self.panels else None


def name_lines(axis: Axes, groups: Sequence[tuple[Series, Sequence[Point]]]) -> None:
    """Write the name of each series beside its line, the first one above."""
    axis.set_yticks(range(len(groups)), [folded(series.name) for series, _ in groups])
    axis.set_ylim(len(groups) - 0.5, -0.5)
    axis.grid(axis="y", visible=False)
    axis.tick_params(axis="y", length=0)


def text(row: Row) -> str:
    """Return the numbers of a mark in words: `ddp-w2: workers 2, samples/s 1800`."""
    run, *others = row.items()
    return f"{run[1]}: " + ", ".join(f"{key} {number(value)}" for key, value in others if value is not None)


def number(value: Any) -> str:
    """Return a value as figures give it: numbers of five digits."""
    return (
        f"{value:.5g}"
        if isinstance(value, float) and abs(value) < 99999.5
        else (f"{value:.0f}" if isinstance(value, float) else str(value))
    )


def points(runs: Sequence[StudyRun], labels: Mapping[str, str], rows: Mapping[str, Row]) -> list[Point]:
    """Return the runs that a figure may show.

    Frameworks never share a panel, for their times don't compare, nor do original and generated data, nor
    hardware of several names. Labels of strategies and merged rows are by cell.
    """
    known = [run for run in runs if run.metrics and run.comparable]
    places = ("hardware", "machine")
    several = [key for key in places if len({rows[run.cell].get(key) for run in known}) > 1]
    return [Point(run, labels[run.cell], _panel(rows[run.cell], several), rows[run.cell]) for run in known]


def _panel(row: Row, several: Sequence[str]) -> str:
    name = "{framework}: {model} on {data}".format(**row, data=data(row))
    return ", ".join([name, *(str(row.get(key)) for key in several)])


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


def series(point: Point, *, batch: bool = False) -> Series:
    """Return the series that a run belongs to; at one worker strong and weak scaling are the same.

    With `batch` runs of several batches are series of their own.
    """
    workers = point.row.get("workers") or 1
    weak = workers > 1 and point.row.get("scaling") == "weak"
    return Series(point.label, workers, weak, point.row.get("batch") if batch else None)


def grouped(panel: Sequence[Point], look: Mapping[str, Look]) -> dict[Series, list[Point]]:
    """Group the runs of a panel by series, in the order of labels, workers and batches."""
    batch = len({point.row.get("batch") for point in panel}) > 1
    groups: dict[Series, list[Point]] = {}
    for point in panel:
        groups.setdefault(series(point, batch=batch), []).append(point)
    order = list(look)
    ranked = sorted(groups, key=lambda s: (order.index(s.label), s.workers, s.weak, s.batch or 0))
    return {each: groups[each] for each in ranked}


def panels(points: Sequence[Point], *, by_framework: bool = True) -> dict[str, list[Point]]:
    """Group points by panel; without `by_framework` frameworks share panels, where times don't compare."""
    panels: dict[str, list[Point]] = {}
    for point in points:
        name = point.panel if by_framework else point.panel.split(": ", 1)[1]
        panels.setdefault(name, []).append(point)
    return panels


def evenly(things: Iterable[Any], most: int) -> list[Any]:
    """Return at most so many things, taken evenly from all."""
    known = list(things)
    count = min(most, len(known))
    return [known[place * len(known) // count] for place in range(count)]


def median_by(points: Sequence[Point], x: Callable[[Point], Any], metric: str) -> dict[Any, float]:
    """Return the median of `metric` at each value of `x`, in ascending order."""
    values: dict[Any, list[float]] = {}
    for point in points:
        values.setdefault(x(point), []).append(point.row[metric])
    return {key: median(values[key]) for key in sorted(values)}


def folded(name: str) -> str:
    """Return a series' name on lines that leave room for its bar."""
    return fill(name, LABEL)


def legend(axis: Axes, size: float = 8) -> None:
    """Name the lines of a panel below it, which grows; in two columns where the names are short."""
    handles, names = axis.get_legend_handles_labels()
    if not names:
        return
    folded = [fill(name, TITLE) for name in names]
    columns = 2 if len(names) > 1 and max(map(len, names)) <= TITLE // 2 - 3 else 1
    figure = axis.get_figure(root=True)
    assert figure is not None
    width, height = figure.get_size_inches()
    lines = -(-sum(1 + name.count("\n") for name in folded) // columns)
    # A line is about 1.6 times as high as its letters; a point is 1/72 inch.
    figure.set_size_inches(width, height + (1.6 * lines + 0.5) * size / 72)
    figure.legend(
        handles, folded, loc="outside lower left", ncols=columns, fontsize=size, handlelength=2.6,
        borderaxespad=0.2, columnspacing=1.2,
    )  # fmt: skip


def named(axes: Axes, size: float = 8) -> None:
    """Name the lines of an axis in it, or nowhere if they are many."""
    if 0 < len(axes.get_legend_handles_labels()[1]) <= 8:
        axes.legend(fontsize=size)


def grid(rows: int, columns: int, size: tuple[float, float], **ratios: Any) -> tuple[Figure, list[Axes]]:
    """Make a figure of `rows` x `columns` axes, `size` in inches; `ratios` as matplotlib's `gridspec_kw`."""
    plt.rcParams.update(STYLE)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, gridspec_kw=ratios)
    for axis in axes.flat:
        axis.patch.set_visible(False)
    return figure, list(axes.flat)
