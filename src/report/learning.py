"""Draw how runs learn.

Every function returns a matplotlib figure, or `None` where the study has nothing to draw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from src.report import canvas
from src.report.canvas import Look, Point

HEADINGS = {"epoch": "epoch", "train_seconds": "seconds of training"}


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
            draw(axis, panel, look, metric, over)
            axis.set(title=name, xlabel=HEADINGS[over], ylabel=f"test {metric}")
    canvas.legend(figure, axes[::2], 7)
    return figure


def draw(
    axis: Axes, panel: Sequence[Point], look: Mapping[str, Look], metric: str, over: str = "epoch"
) -> None:
    """Draw `metric` of each run of `panel` against `over`, a column of `StudyRun.epochs`."""
    named: set[str] = set()
    for point in panel:
        known = [row for row in point.run.epochs if None not in (row.get(over), row.get(metric))]
        style, series = look[point.label], canvas.series(point)
        name = None if series.name in named else series.name
        named.add(series.name)
        mark: dict[str, Any] = {
            "color": style.color,
            "marker": style.marker,
            "markersize": 3.5,
            "label": name,
        }
        xs, ys = [row[over] for row in known], [row[metric] for row in known]
        axis.plot(xs, ys, series.dash(style), alpha=0.85, **mark)
    locator: Any = axis.xaxis.get_major_locator()
    locator.set_params(integer=over == "epoch")
