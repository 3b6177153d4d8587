"""Draw the figures that compare a study's runs, with one colour a strategy throughout.

Every function returns a matplotlib figure, or `None` where the study has nothing to draw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from src.report import canvas
from src.report.canvas import Look, Point

# A panel with more batches than these is a sweep over them.
MANY_BATCHES = 3
HEADINGS = {"epoch": "epoch", "train_seconds": "seconds of training"}


def bars(points: Sequence[Point], look: Mapping[str, Look], metric: str, heading: str) -> Figure | None:
    """Draw `metric` of each strategy by number of workers: the bar is the median run, a dot is one run.

    The dot of a disturbed run is hollow.
    """
    panels = canvas.panels([point for point in points if point.row.get(metric) is not None])
    if not panels:
        return None
    heights = [1 + 0.3 * len({canvas.series(point) for point in panel}) for panel in panels.values()]
    figure, axes = canvas.grid(len(panels), 1, (8.4, sum(heights)), height_ratios=heights)
    for axis, (name, panel) in zip(axes, panels.items(), strict=True):
        _bars(axis, panel, look, metric)
        axis.set(xlabel=heading)
        # Beside long names the axis is narrower than its title, which then has room to the left alone.
        axis.set_title(name, loc="right")
    return figure


def _bars(axis: Axes, panel: Sequence[Point], look: Mapping[str, Look], metric: str) -> None:
    distinct = {canvas.series(point) for point in panel}
    drawn = sorted(distinct, key=lambda s: (list(look).index(s.label), s.workers, s.weak))
    for place, series in enumerate(drawn):
        values = [point.row[metric] for point in panel if canvas.series(point) == series]
        color = look[series.label].color
        axis.barh(place, median(values), color=color, alpha=0.55, height=0.7)
        for point in panel:
            if canvas.series(point) == series:
                fill = "white" if point.row.get("disturbed") else color
                axis.plot(point.row[metric], place, "o", color=color, markerfacecolor=fill, markersize=3.5)
    axis.set_yticks(range(len(drawn)), [series.name for series in drawn])
    axis.invert_yaxis()
    axis.set_xlim(left=0)
    axis.grid(axis="y", visible=False)


def speedups(points: Sequence[Point], look: Mapping[str, Look]) -> Figure | None:
    """Draw the speed-up over each framework's own single run against workers, with the ideal line."""
    several = {p.panel for p in points if p.row.get("speedup") is not None and p.row["workers"] > 1}
    panels = canvas.panels([p for p in points if p.panel in several and p.row.get("speedup") is not None])
    if not panels:
        return None
    figure, axes = canvas.grid(1, len(panels), (max(6.4, 4.2 * len(panels)), 3.8))
    for axis, (name, panel) in zip(axes, panels.items(), strict=True):
        _speedup(axis, panel, look)
        axis.set(title=name)
    canvas.legend(figure, axes)
    return figure


def _speedup(axis: Axes, panel: Sequence[Point], look: Mapping[str, Look]) -> None:
    most = max(point.row["workers"] for point in panel)
    axis.plot([1, most], [1, most], color="#888888", linestyle="--", linewidth=1, label="ideal")
    names = list(dict.fromkeys(point.label for point in panel))
    for place, label in enumerate(names):
        # Intervals stand side by side, for at a number of workers they overlap.
        aside = (place - (len(names) - 1) / 2) * 0.04
        for scaling in ("strong", "weak"):
            # At one worker strong and weak scaling are the same: both lines begin there.
            alike = [p for p in panel if p.row["workers"] == 1 or (p.row["scaling"] or "strong") == scaling]
            chosen = [p for p in alike if p.label == label]
            curve = canvas.median_by(chosen, lambda point: point.row["workers"], "speedup")
            if not curve or max(curve) == 1:
                continue
            style = look[label].marked()
            xs = [point.row["workers"] for point in chosen]
            axis.plot(xs, [p.row["speedup"] for p in chosen], linestyle="", alpha=0.35, **style)
            name = label if scaling == "strong" else f"{label}, weak"
            dash = look[label].dash if scaling == "strong" else ":"
            axis.plot(list(curve), list(curve.values()), linestyle=dash, label=name, **style)
            _intervals(axis, chosen, look[label].color, aside)
    axis.set(xlabel="workers", ylabel="speed-up over single", ylim=(0, None), xlim=(0.9, most + 0.1 * most))
    axis.set_xticks(range(1, int(most) + 1) if most <= 8 else sorted({p.row["workers"] for p in panel}))


def _intervals(axis: Axes, points: Sequence[Point], color: str, aside: float) -> None:
    """Draw the 95 % interval of each speed-up that was measured repeatedly, `aside` of its workers."""
    bounds = {(p.row["workers"], p.row.get("speedup_low"), p.row.get("speedup_high")) for p in points}
    for workers, low, high in bounds:
        if low is not None:
            axis.plot([workers + aside] * 2, [low, high], color=color, linewidth=4, alpha=0.4)


def batches(points: Sequence[Point], look: Mapping[str, Look]) -> Figure | None:
    """Draw loss, accuracy and time against the batch, one line a strategy and number of workers."""
    swept = {
        p.panel for p in points if len({q.row["batch"] for q in points if q.panel == p.panel}) > MANY_BATCHES
    }
    panels = canvas.panels([p for p in points if p.panel in swept])
    if not panels:
        return None
    figure, axes = canvas.grid(len(panels), 3, (11, 3.1 * len(panels)))
    for place, (name, panel) in enumerate(panels.items()):
        whole = any(p.row.get("seconds_per_epoch") is not None for p in panel)
        time = ("seconds_per_epoch", "s per epoch") if whole else ("milliseconds_per_sample", "ms per sample")
        metrics = {"loss": "test loss", "accuracy": "test accuracy", time[0]: time[1]}
        for axis, (metric, heading) in zip(axes[3 * place : 3 * place + 3], metrics.items(), strict=True):
            _against_batch(axis, panel, look, metric)
            axis.set(title=name, xlabel="batch", ylabel=heading)
    canvas.legend(figure, axes[::3])
    return figure


def _against_batch(axis: Axes, panel: Sequence[Point], look: Mapping[str, Look], metric: str) -> None:
    for series in dict.fromkeys(canvas.series(p) for p in panel):
        chosen = [p for p in panel if canvas.series(p) == series and p.row.get(metric) is not None]
        curve = canvas.median_by(chosen, lambda point: point.row["batch"], metric)
        style = look[series.label]
        axis.plot(list(curve), list(curve.values()), series.dash(style), label=series.name, **style.marked())
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(lambda batch, _: f"{batch:g}")


def overview(points: Sequence[Point], look: Mapping[str, Look]) -> Figure | None:
    """Draw throughput, speed-up and accuracy of the panel with the most strategies, 1200 x 600 pixels."""
    panels = canvas.panels([p for p in points if p.row.get("samples_per_second") is not None])
    if not panels:
        return None
    name = max(panels, key=lambda panel: (len({canvas.series(p) for p in panels[panel]}), len(panels[panel])))
    panel = panels[name]
    figure, (left, middle, right) = canvas.grid(1, 3, (12, 6), width_ratios=(1.25, 1, 1))
    _bars(left, panel, look, "samples_per_second")
    left.set(title="throughput", xlabel="training samples/s")
    ratios = [p for p in panel if p.row.get("speedup") is not None]
    if ratios:
        _speedup(middle, ratios, look)
        canvas.legend(figure, [middle], 8, beside=False)
    middle.set(title="speed-up against ideal")
    swept = len({p.row["batch"] for p in panel}) > MANY_BATCHES
    if any(len(p.run.epochs) > 1 for p in panel) and not swept:
        _draw_learning(right, panel, look, "accuracy")
        right.set(title="test accuracy", xlabel="epoch")
    elif swept:
        _against_batch(right, panel, look, "accuracy")
        right.set(title="test accuracy", xlabel="batch")
    else:
        for p in panel:
            style = look[p.label]
            right.plot(p.row["train_seconds"], p.row["accuracy"], style.marker, color=style.color)
        right.set(title="test accuracy", xlabel="seconds of training")
    canvas.legend(figure, [right], 8, beside=False)
    figure.suptitle(name)
    return figure


def curves(points: Sequence[Point], look: Mapping[str, Look], over: str) -> Figure | None:
    """Draw test accuracy and loss against `over`, one line a run; `None` when no run has two evaluations.

    Frameworks share a panel when `over` is `epoch`, and not when it is `train_seconds`.
    """
    learned = [p for p in points if len(p.run.epochs) > 1]
    panels = canvas.panels(learned, by_framework=over == "train_seconds")
    if not panels:
        return None
    figure, axes = canvas.grid(len(panels), 2, (9.6, 3.3 * len(panels)))
    for place, (name, panel) in enumerate(panels.items()):
        for axis, metric in zip(axes[2 * place : 2 * place + 2], ("accuracy", "loss"), strict=True):
            _draw_learning(axis, panel, look, metric, over)
            axis.set(title=name, xlabel=HEADINGS[over], ylabel=f"test {metric}")
    canvas.legend(figure, axes[::2], 7)
    return figure


def _draw_learning(
    axis: Axes, panel: Sequence[Point], look: Mapping[str, Look], metric: str, over: str = "epoch"
) -> None:
    """Draw `metric` of each run of `panel` against `over`, a column of `StudyRun.epochs`."""
    named: set[str] = set()
    for point in panel:
        known = [row for row in point.run.epochs if None not in (row.get(over), row.get(metric))]
        style, series = look[point.label], canvas.series(point)
        name = None if series.name in named else series.name
        named.add(series.name)
        xs, ys = [row[over] for row in known], [row[metric] for row in known]
        axis.plot(xs, ys, series.dash(style), alpha=0.85, label=name, **style.marked(3.5))
    locator: Any = axis.xaxis.get_major_locator()
    locator.set_params(integer=over == "epoch")
