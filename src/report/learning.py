"""The figures of how runs learn.

Every function returns a matplotlib figure, or `None` where the study has nothing to draw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from src.report import canvas
from src.report.canvas import Look, Point


def curves(found: Sequence[Point], look: Mapping[str, Look]) -> Figure | None:
    """Test accuracy and loss against epoch, one line a run; nothing when no run has two epochs."""
    panels = canvas.panels([p for p in found if len(p.run.epochs) > 1], by_framework=False)
    if not panels:
        return None
    figure, axes = canvas.grid(len(panels), 2, (9.6, 3.3 * len(panels)))
    for place, (name, panel) in enumerate(panels.items()):
        for axis, metric in zip(axes[2 * place : 2 * place + 2], ("accuracy", "loss"), strict=True):
            draw(axis, panel, look, metric)
            axis.set(title=name, xlabel="epoch", ylabel=f"test {metric}")
        axes[2 * place].legend(fontsize=7)
    return figure


def draw(axis: Axes, panel: Sequence[Point], look: Mapping[str, Look], metric: str) -> None:
    """`metric` of each run of `panel` against epoch."""
    named: set[str] = set()
    for point in panel:
        curve = [(row["epoch"], row[metric]) for row in point.run.epochs if row.get(metric) is not None]
        style, series = look[point.label], canvas.series(point)
        name = None if series.name in named else series.name
        named.add(series.name)
        mark = {"color": style.color, "marker": style.marker, "markersize": 3.5, "label": name}
        xs, ys = zip(*curve, strict=True) if curve else ((), ())
        axis.plot(xs, ys, series.dash(style), alpha=0.85, **mark)
    axis.xaxis.get_major_locator().set_params(integer=True)
