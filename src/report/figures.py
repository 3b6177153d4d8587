"""Draw the figures that compare a study's runs, with one colour a strategy throughout.

Every function returns a drawing of one panel or more, or `None` where the study has nothing to compare: a
panel with a single bar or dot isn't drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from src.report import canvas
from src.report.canvas import Drawing, Look, Point, Series

# A panel with more batches than these is a sweep over them.
MANY_BATCHES = 3
HEADINGS = {"epoch": "epoch", "train_seconds": "seconds of training"}


def bars(points: Sequence[Point], look: Mapping[str, Look], metric: str, heading: str) -> Drawing | None:
    """Draw `metric` of each series: the bar is the median run, a dot is one run.

    The dot of a disturbed run is hollow.
    """
    drawing = Drawing()
    known = [point for point in points if point.row.get(metric) is not None]
    for axis, groups in drawing.lined(known, look, "bars"):
        _bars(axis, groups, look, metric, heading, drawing)
    return drawing.or_none()


def _panels(drawing: Drawing, points: Sequence[Point], **options: Any) -> list[tuple[str, list[Point]]]:
    """Return the panels of a drawing that have something to compare, by name."""
    panels = [(name, panel) for name, panel in canvas.panels(points, **options).items() if len(panel) > 1]
    return drawing.some(panels, canvas.PANELS, "panels")


def _bars(
    axis: Axes,
    groups: Sequence[tuple[Series, Sequence[Point]]],
    look: Mapping[str, Look],
    metric: str,
    heading: str,
    drawing: Drawing,
) -> None:
    for place, (series, alike) in enumerate(groups):
        values = [point.row[metric] for point in alike]
        (bar,) = axis.barh(place, median(values), color=look[series.label].color, height=0.66)
        drawing.mark(bar, [{"run": _median_of(series, alike), heading: median(values)}])
        for hollow in (False, True):
            some = [point for point in alike if bool(point.row.get("disturbed")) == hollow]
            style: dict[str, Any] = {
                "color": canvas.PAGE if hollow else canvas.INK,
                "markersize": 4,
                "markeredgewidth": 0.8,
            }
            edge = canvas.INK if hollow else canvas.PAGE
            # The end of its bar shows a single run well enough.
            if some and (hollow or len(alike) > 1):
                xs = [point.row[metric] for point in some]
                (dots,) = axis.plot(xs, [place] * len(xs), "o", markeredgecolor=edge, **style)
                drawing.mark(dots, [{"run": p.run.cell, heading: p.row[metric]} for p in some])
    axis.set_xlim(left=0)
    axis.set_xlabel(heading)


def _median_of(series: Series, alike: Sequence[Point]) -> str:
    return f"{series.name}, median of {len(alike)}" if len(alike) > 1 else alike[0].run.cell


def speedups(points: Sequence[Point], look: Mapping[str, Look]) -> Drawing | None:
    """Draw the speed-up over each framework's own single run against workers, with the ideal line."""
    several = {p.panel for p in points if p.row.get("speedup") is not None and p.row["workers"] > 1}
    drawing = Drawing()
    chosen = [p for p in points if p.panel in several and p.row.get("speedup") is not None]
    for name, panel in _panels(drawing, chosen):
        axis = drawing.panel(name)
        _speedup(axis, panel, look, drawing)
        canvas.legend(axis)
    return drawing.or_none()


def _speedup(axis: Axes, panel: Sequence[Point], look: Mapping[str, Look], drawing: Drawing) -> None:
    most = max(point.row["workers"] for point in panel)
    axis.plot([1, most], [1, most], color=canvas.SOFT, linestyle="--", linewidth=1, label="ideal")
    names = drawing.some(dict.fromkeys(point.label for point in panel), canvas.LINES, "lines")
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
            name = label if scaling == "strong" else f"{label}, weak"
            if not chosen[0].run.trains:
                name = "measured capacity"
            if len(chosen) > len(curve):
                xs = [point.row["workers"] for point in chosen]
                ys = [point.row["speedup"] for point in chosen]
                (dots,) = axis.plot(xs, ys, linestyle="", alpha=0.5, **look[label].marked(3))
                drawing.mark(
                    dots,
                    [
                        {"run": p.run.cell, "workers": p.row["workers"], "speed-up": p.row["speedup"]}
                        for p in chosen
                    ],
                )
            dash = look[label].dash if scaling == "strong" else ":"
            (line,) = axis.plot(list(curve), list(curve.values()), linestyle=dash, label=name, **style)
            drawing.mark(line, [_ratio(name, chosen, workers, ratio) for workers, ratio in curve.items()])
            _intervals(axis, chosen, look[label].color, aside)
    axis.set(xlabel="workers", ylabel="speed-up over single", ylim=(0, None), xlim=(0.9, most + 0.1 * most))
    axis.set_xticks(range(1, int(most) + 1) if most <= 8 else sorted({p.row["workers"] for p in panel}))


def _ratio(name: str, points: Sequence[Point], workers: int, ratio: float) -> dict[str, Any]:
    """Return the numbers of a median speed-up, with the interval if it is one configuration's."""
    row = {"run": f"{name}, median", "workers": workers, "speed-up": ratio}
    bounds = {
        (p.row.get("speedup_low"), p.row.get("speedup_high")) for p in points if p.row["workers"] == workers
    }
    if len(bounds) == 1 and (only := bounds.pop())[0] is not None:
        row |= {"95 % from": only[0], "to": only[1]}
    return row


def _intervals(axis: Axes, points: Sequence[Point], color: str, aside: float) -> None:
    """Draw the 95 % interval of each speed-up that was measured repeatedly, `aside` of its workers."""
    bounds = {(p.row["workers"], p.row.get("speedup_low"), p.row.get("speedup_high")) for p in points}
    for workers, low, high in sorted(bounds, key=str):
        if low is not None:
            axis.plot([workers + aside] * 2, [low, high], color=color, linewidth=5, alpha=0.4)


def batches(points: Sequence[Point], look: Mapping[str, Look]) -> Drawing | None:
    """Draw loss, accuracy and time against the batch, one line a strategy and number of workers."""
    drawing = Drawing()
    for name, panel in _panels(drawing, swept(points)):
        whole = any(p.row.get("seconds_per_epoch") is not None for p in panel)
        time = ("seconds_per_epoch", "s per epoch") if whole else ("milliseconds_per_sample", "ms per sample")
        for metric, heading in {"loss": "test loss", "accuracy": "test accuracy", time[0]: time[1]}.items():
            if any(p.row.get(metric) is not None for p in panel):
                axis = drawing.panel(f"{name}: {heading}")
                _against_batch(axis, panel, look, metric, heading, drawing)
                canvas.legend(axis)
    return drawing.or_none()


def swept(points: Sequence[Point]) -> list[Point]:
    """Return the runs in panels of many batches."""
    batches: dict[str, set[Any]] = {}
    for point in points:
        batches.setdefault(point.panel, set()).add(point.row["batch"])
    return [point for point in points if len(batches[point.panel]) > MANY_BATCHES]


def _against_batch(
    axis: Axes,
    panel: Sequence[Point],
    look: Mapping[str, Look],
    metric: str,
    heading: str,
    drawing: Drawing,
) -> None:
    for series in drawing.some(dict.fromkeys(canvas.series(p) for p in panel), canvas.LINES, "lines"):
        chosen = [p for p in panel if canvas.series(p) == series and p.row.get(metric) is not None]
        curve = canvas.median_by(chosen, lambda point: point.row["batch"], metric)
        style = look[series.label]
        (line,) = axis.plot(
            list(curve), list(curve.values()), series.dash(style), label=series.name, **style.marked()
        )
        drawing.mark(line, [{"run": series.name, "batch": x, heading: y} for x, y in curve.items()])
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(lambda batch, _: f"{batch:g}")
    axis.set(xlabel="batch", ylabel=heading)


def overview(points: Sequence[Point], look: Mapping[str, Look]) -> Figure | None:
    """Draw throughput, speed-up and accuracy of the panel with the most strategies, 1200 x 600 pixels."""
    panels = canvas.panels([p for p in points if p.row.get("samples_per_second") is not None])
    if not panels:
        return None
    name = max(panels, key=lambda panel: (len({canvas.series(p) for p in panels[panel]}), len(panels[panel])))
    panel, drawing = panels[name], Drawing()
    figure, (left, middle, right) = canvas.grid(1, 3, (12, 6), width_ratios=(1.25, 1, 1))
    groups = canvas.evenly(canvas.grouped(panel, look).items(), canvas.BARS)
    _bars(left, groups, look, "samples_per_second", "training samples/s", drawing)
    canvas.name_lines(left, groups)
    left.set(title="throughput")
    ratios = [p for p in panel if p.row.get("speedup") is not None]
    if ratios:
        _speedup(middle, ratios, look, drawing)
        canvas.named(middle)
    middle.set(title="speed-up against ideal")
    trained = [p for p in panel if p.run.trains]
    if learned(trained) and not swept(trained):
        _draw_learning(right, trained, look, "accuracy", "epoch", drawing)
    elif swept(trained):
        _against_batch(right, trained, look, "accuracy", "test accuracy", drawing)
    else:
        for p in trained:
            style = look[p.label]
            right.plot(p.row["train_seconds"], p.row["accuracy"], style.marker, color=style.color)
        right.set(xlabel="seconds of training")
    right.set(title="test accuracy", ylabel="")
    canvas.named(right)
    figure.suptitle(name)
    return figure


def curves(points: Sequence[Point], look: Mapping[str, Look], over: str) -> Drawing | None:
    """Draw test accuracy and loss against `over`, one line a run; `None` when no run has two evaluations.

    Frameworks share a panel when `over` is `epoch`, and not when it is `train_seconds`.
    """
    drawing = Drawing()
    for name, panel in _panels(drawing, learned(points), by_framework=over == "train_seconds"):
        some = drawing.some(panel, canvas.LINES, "lines")
        for metric in ("accuracy", "loss"):
            if any(row.get(metric) is not None for p in some for row in p.run.epochs):
                axis = drawing.panel(f"{name}: {metric}")
                _draw_learning(axis, some, look, metric, over, drawing)
                canvas.legend(axis)
    return drawing.or_none()


def learned(points: Sequence[Point]) -> list[Point]:
    """Return the runs that have a curve: at least two evaluations."""
    return [point for point in points if len(point.run.epochs) > 1]


def _draw_learning(
    axis: Axes,
    panel: Sequence[Point],
    look: Mapping[str, Look],
    metric: str,
    over: str,
    drawing: Drawing,
) -> None:
    """Draw `metric` of each run of `panel` against `over`, a column of `StudyRun.epochs`."""
    named: set[str] = set()
    for point in panel:
        known = [row for row in point.run.epochs if None not in (row.get(over), row.get(metric))]
        style, series = look[point.label], canvas.series(point)
        name = None if series.name in named else series.name
        named.add(series.name)
        xs, ys = [row[over] for row in known], [row[metric] for row in known]
        (line,) = axis.plot(xs, ys, series.dash(style), alpha=0.85, label=name, **style.marked(3.5))
        numbers = zip(xs, ys, strict=True)
        drawing.mark(
            line, [{"run": point.run.cell, HEADINGS[over]: x, f"test {metric}": y} for x, y in numbers]
        )
    locator: Any = axis.xaxis.get_major_locator()
    locator.set_params(integer=over == "epoch")
    axis.set(xlabel=HEADINGS[over], ylabel=f"test {metric}")
