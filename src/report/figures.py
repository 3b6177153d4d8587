"""The figures of a study, drawn from its runs and tables; one colour a strategy throughout.

Every function returns a matplotlib figure, or `None` where the study has nothing to draw.
"""

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
MANY_BATCHES = 3
TRACES = 12
TRACE_POINTS = 240
TIMELINES = 8
# A stage's activities; what is left blank is idle.
ACTIVITIES = {
    **{"forward": "#0072B2", "loss": "#56B4E9", "backward": "#009E73", "optimizer": "#CC79A7"},
    **{"send": "#E69F00", "wait": "#d9d9d9"},
}
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


def bars(found: Sequence[Point], look: Mapping[str, Look], metric: str, heading: str) -> Figure | None:
    """`metric` of each strategy at each number of workers: the bar is the median run, a dot is one run."""
    panels = _panels([point for point in found if point.row.get(metric) is not None])
    if not panels:
        return None
    heights = [1 + 0.3 * len({_key(point) for point in panel}) for panel in panels.values()]
    figure, axes = _grid(len(panels), 1, (8.4, sum(heights)), height_ratios=heights)
    for axis, (name, panel) in zip(axes, panels.items(), strict=True):
        _bars(axis, panel, look, metric)
        axis.set(title=name, xlabel=heading)
    return figure


def _bars(axis: Axes, panel: Sequence[Point], look: Mapping[str, Look], metric: str) -> None:
    keys = sorted({_key(point) for point in panel}, key=lambda key: (list(look).index(key[0]), key[1]))
    for place, key in enumerate(keys):
        values = [point.row[metric] for point in panel if _key(point) == key]
        axis.barh(place, median(values), color=look[key[0]].color, alpha=0.55, height=0.7)
        axis.plot(values, [place] * len(values), "o", color=look[key[0]].color, markersize=3.5)
    axis.set_yticks(range(len(keys)), [f"{label}, {workers} w" for label, workers in keys])
    axis.invert_yaxis()
    axis.set_xlim(left=0)
    axis.grid(axis="y", visible=False)


def speedups(found: Sequence[Point], look: Mapping[str, Look]) -> Figure | None:
    """Speed-up over each framework's own single run against workers, with the ideal line."""
    several = {p.panel for p in found if p.row.get("speedup") is not None and p.row["workers"] > 1}
    panels = _panels([p for p in found if p.panel in several and p.row.get("speedup") is not None])
    if not panels:
        return None
    figure, axes = _grid(1, len(panels), (max(6.4, 4.2 * len(panels)), 3.8))
    for axis, (name, panel) in zip(axes, panels.items(), strict=True):
        _speedup(axis, panel, look)
        axis.set(title=name)
        axis.legend(fontsize=7.5)
    return figure


def _speedup(axis: Axes, panel: Sequence[Point], look: Mapping[str, Look]) -> None:
    most = max(point.row["workers"] for point in panel)
    axis.plot([1, most], [1, most], color="#888888", linestyle="--", linewidth=1, label="ideal")
    for label in dict.fromkeys(point.label for point in panel):
        for scaling in ("strong", "weak"):
            chosen = [p for p in panel if p.label == label and (p.row["scaling"] or "strong") == scaling]
            curve = _median_by(chosen, lambda point: point.row["workers"], "speedup")
            if not curve or max(curve) == 1:
                continue
            style = {"color": look[label].color, "marker": look[label].marker, "markersize": 4}
            xs = [point.row["workers"] for point in chosen]
            axis.plot(xs, [p.row["speedup"] for p in chosen], linestyle="", alpha=0.35, **style)
            name = label if scaling == "strong" else f"{label}, weak"
            dash = look[label].dash if scaling == "strong" else ":"
            axis.plot(list(curve), list(curve.values()), linestyle=dash, label=name, **style)
    axis.set(xlabel="workers", ylabel="speed-up over single", ylim=(0, None), xlim=(0.9, most + 0.1 * most))
    axis.set_xticks(range(1, int(most) + 1) if most <= 8 else sorted({p.row["workers"] for p in panel}))


def learning(found: Sequence[Point], look: Mapping[str, Look]) -> Figure | None:
    """Test accuracy and loss against epoch, one line a run; nothing when no run has two epochs."""
    panels = _panels([p for p in found if len(p.run.epochs) > 1], by_framework=False)
    if not panels:
        return None
    figure, axes = _grid(len(panels), 2, (9.6, 3.3 * len(panels)))
    for place, (name, panel) in enumerate(panels.items()):
        for axis, metric in zip(axes[2 * place : 2 * place + 2], ("accuracy", "loss"), strict=True):
            _learning(axis, panel, look, metric)
            axis.set(title=name, xlabel="epoch", ylabel=f"test {metric}")
        axes[2 * place].legend(fontsize=7)
    return figure


def _learning(axis: Axes, panel: Sequence[Point], look: Mapping[str, Look], metric: str) -> None:
    named: set[tuple[str, int]] = set()
    for point in panel:
        curve = [(row["epoch"], row[metric]) for row in point.run.epochs if row.get(metric) is not None]
        style, key = look[point.label], _key(point)
        name = None if key in named else f"{point.label}, {key[1]} w"
        named.add(key)
        dash = style.dash if key[1] == 1 else "--"
        xs, ys = zip(*curve, strict=True) if curve else ((), ())
        axis.plot(
            xs, ys, dash, color=style.color, marker=style.marker, markersize=3.5, alpha=0.85, label=name
        )
    axis.xaxis.get_major_locator().set_params(integer=True)


def batches(found: Sequence[Point], look: Mapping[str, Look]) -> Figure | None:
    """Loss, accuracy and time against the batch, one line a strategy and number of workers."""
    swept = {
        p.panel for p in found if len({q.row["batch"] for q in found if q.panel == p.panel}) > MANY_BATCHES
    }
    panels = _panels([p for p in found if p.panel in swept])
    if not panels:
        return None
    figure, axes = _grid(len(panels), 3, (11, 3.1 * len(panels)))
    for place, (name, panel) in enumerate(panels.items()):
        whole = any(p.row.get("seconds_per_epoch") is not None for p in panel)
        time = ("seconds_per_epoch", "s per epoch") if whole else ("milliseconds_per_sample", "ms per sample")
        metrics = {"loss": "test loss", "accuracy": "test accuracy", time[0]: time[1]}
        for axis, (metric, heading) in zip(axes[3 * place : 3 * place + 3], metrics.items(), strict=True):
            _against_batch(axis, panel, look, metric)
            axis.set(title=name, xlabel="batch", ylabel=heading)
        axes[3 * place].legend(fontsize=7.5)
    return figure


def _against_batch(axis: Axes, panel: Sequence[Point], look: Mapping[str, Look], metric: str) -> None:
    for key in dict.fromkeys(_key(p) for p in panel):
        chosen = [p for p in panel if _key(p) == key and p.row.get(metric) is not None]
        curve = _median_by(chosen, lambda point: point.row["batch"], metric)
        style = look[key[0]]
        mark = {"marker": style.marker, "markersize": 4, "label": f"{key[0]}, {key[1]} w"}
        dash = "--" if key[1] > 1 else style.dash
        axis.plot(list(curve), list(curve.values()), dash, color=style.color, **mark)
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(lambda batch, _: f"{batch:g}")


def traces(found: Sequence[Point], look: Mapping[str, Look]) -> Figure | None:
    """Utilisation of each device over time, for up to `TRACES` runs taken evenly from all."""
    traced = [p for p in found if any(row.get("utilization") is not None for row in p.run.trace)]
    if not traced:
        return None
    count = min(TRACES, len(traced))
    chosen = [traced[place * len(traced) // count] for place in range(count)]
    columns = min(3, count)
    figure, axes = _grid(-(-count // columns), columns, (3.4 * columns, 0.7 + 1.7 * -(-count // columns)))
    for axis, point in zip(axes, chosen, strict=False):
        start = min(row["time"] for row in point.run.trace)
        for place, device in enumerate(dict.fromkeys(str(row.get("device")) for row in point.run.trace)):
            rows = [row for row in point.run.trace if str(row.get("device")) == device]
            rows = [row for row in rows if row.get("utilization") is not None]
            rows = rows[:: max(1, len(rows) // TRACE_POINTS)]
            xs, ys = [row["time"] - start for row in rows], [row["utilization"] for row in rows]
            axis.plot(xs, ys, DASHES[place % 4], color=look[point.label].color, linewidth=1)
        row = point.row
        axis.set_title(
            f"{point.label}, {row['workers']} w\n{row['model']}, batch {row['batch']}", fontsize=7.5
        )
        axis.set_ylim(0, None)
    for axis in axes[count:]:
        axis.set_visible(False)
    figure.supxlabel("seconds", fontsize=9)
    figure.supylabel("utilisation", fontsize=9)
    return figure


def timelines(found: Sequence[Point]) -> Figure | None:
    """What each stage does over the first two recorded steps, for up to `TIMELINES` runs taken evenly."""
    recorded = [point for point in found if point.run.timeline]
    if not recorded:
        return None
    count = min(TIMELINES, len(recorded))
    chosen = [recorded[place * len(recorded) // count] for place in range(count)]
    heights = [0.75 + 0.32 * point.row["workers"] for point in chosen]
    figure, axes = _grid(count, 1, (10.5, sum(heights) + 0.5), height_ratios=heights)
    for axis, point in zip(axes, chosen, strict=True):
        steps = sorted({event["args"]["step"] for event in point.run.timeline})[:2]
        events = [event for event in point.run.timeline if event["args"]["step"] in steps]
        zero = min(event["ts"] for event in events)
        for activity, color in ACTIVITIES.items():
            for stage in range(point.row["workers"]):
                spans = [
                    ((event["ts"] - zero) / 1e3, event["dur"] / 1e3)
                    for event in events
                    if event["pid"] == stage and event["cat"] == activity
                ]
                axis.broken_barh(spans, (stage - 0.4, 0.8), color=color, edgecolor="white", linewidth=0.3)
        axis.set_yticks(range(point.row["workers"]), [f"stage {s}" for s in range(point.row["workers"])])
        axis.invert_yaxis()
        axis.grid(axis="y", visible=False)
        bubble, ideal = point.row.get("bubble_fraction"), point.row.get("bubble_ideal")
        measured = f", idle {bubble:.0%}" if bubble is not None else ""
        measured += f" (ideal {ideal:.0%})" if ideal is not None and measured else ""
        axis.set_title(
            f"{point.label}, {point.row['model']}, batch {point.row['batch']}{measured}", fontsize=8
        )
    handles = [plt.Rectangle((0, 0), 1, 1, color=color) for color in ACTIVITIES.values()]
    figure.legend(handles, list(ACTIVITIES), loc="outside lower center", ncols=len(ACTIVITIES), fontsize=8)
    axes[-1].set_xlabel("milliseconds")
    return figure


def overview(found: Sequence[Point], look: Mapping[str, Look]) -> Figure | None:
    """Throughput, speed-up and accuracy of the panel with the most strategies, 1200 x 600 pixels."""
    panels = _panels([p for p in found if p.row.get("samples_per_second") is not None])
    if not panels:
        return None
    name = max(panels, key=lambda panel: (len({_key(p) for p in panels[panel]}), len(panels[panel])))
    panel = panels[name]
    figure, (left, middle, right) = _grid(1, 3, (12, 6), width_ratios=(1.25, 1, 1))
    _bars(left, panel, look, "samples_per_second")
    left.set(title="throughput", xlabel="training samples/s")
    ratios = [p for p in panel if p.row.get("speedup") is not None]
    if ratios:
        _speedup(middle, ratios, look)
        middle.legend(fontsize=8)
    middle.set(title="speed-up against ideal")
    swept = len({p.row["batch"] for p in panel}) > MANY_BATCHES
    if any(len(p.run.epochs) > 1 for p in panel) and not swept:
        _learning(right, panel, look, "accuracy")
        right.set(title="test accuracy", xlabel="epoch")
    elif swept:
        _against_batch(right, panel, look, "accuracy")
        right.set(title="test accuracy", xlabel="batch")
    else:
        for p in panel:
            style = look[p.label]
            right.plot(p.row.get("train_seconds"), p.row.get("accuracy"), style.marker, color=style.color)
        right.set(title="test accuracy", xlabel="seconds of training")
    if right.get_legend_handles_labels()[1]:
        right.legend(fontsize=8)
    figure.suptitle(name)
    return figure


def data_uri(figure: Figure) -> str:
    """The figure as an SVG `data:` address, so that the page loads nothing; closes the figure."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None}, facecolor="white")
    plt.close(figure)
    return "data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode()


def _key(point: Point) -> tuple[str, int]:
    return point.label, point.row.get("workers") or 1


def _panels(found: Sequence[Point], *, by_framework: bool = True) -> dict[str, list[Point]]:
    panels: dict[str, list[Point]] = {}
    for point in found:
        name = point.panel if by_framework else point.panel.split(": ", 1)[1]
        panels.setdefault(name, []).append(point)
    return panels


def _median_by(found: Sequence[Point], x: Callable[[Point], Any], metric: str) -> dict[Any, float]:
    values: dict[Any, list[float]] = {}
    for point in found:
        values.setdefault(x(point), []).append(point.row[metric])
    return {key: median(values[key]) for key in sorted(values)}


def _grid(rows: int, columns: int, size: tuple[float, float], **ratios: Any) -> tuple[Figure, list[Axes]]:
    plt.rcParams.update(STYLE)
    figure, axes = plt.subplots(
        rows, columns, figsize=size, squeeze=False, layout="constrained", gridspec_kw=ratios
    )
    return figure, list(axes.flat)
