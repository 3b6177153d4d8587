"""The figures of how runs learn.

Every function returns a matplotlib figure, or `None` where the study has nothing to draw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from src.report import canvas
from src.report.canvas import Look, Point

HEADINGS = {"epoch": "epoch", "train_seconds": "seconds of training"}


def curves(found: Sequence[Point], look: Mapping[str, Look], over: str) -> Figure | None:
    """Test accuracy and loss against `over`, one line a run; nothing when no run has two evaluations.

    Over epochs frameworks share a panel, over `train_seconds` they don't.
    """
    learned = [p for p in found if len(p.run.epochs) > 1]
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
    """`metric` of each run of `panel` against `over`, a column of `Run.epochs`."""
    named: set[str] = set()
    for point in panel:
        known = [row for row in point.run.epochs if None not in (row.get(over), row.get(metric))]
        style, series = look[point.label], canvas.series(point)
        name = None if series.name in named else series.name
        named.add(series.name)
        mark = {"color": style.color, "marker": style.marker, "markersize": 3.5, "label": name}
        xs, ys = [row[over] for row in known], [row[metric] for row in known]
        axis.plot(xs, ys, series.dash(style), alpha=0.85, **mark)
    axis.xaxis.get_major_locator().set_params(integer=over == "epoch")
