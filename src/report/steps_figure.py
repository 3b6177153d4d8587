"""Draw the steps that trainings need to reach their target, over batches, with the fits to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from src.report import canvas, steps_to_target
from src.report.batch_curve import BatchCurve
from src.report.canvas import Drawing, Look, Point
from src.report.runs import Row
from src.report.steps_to_target import LEVEL, Curve

# Batches at which a fit is drawn.
DRAWN = 33


def steps_over_batches(points: Sequence[Point], look: Mapping[str, Look]) -> Drawing | None:
    """Draw each curve in a panel: a dot is a run with its batch's best rate, a cross one with another."""
    drawing = Drawing()
    curves = steps_to_target.curves([point.run for point in points])
    for curve in drawing.some(curves, canvas.PANELS, "curves"):
        _draw(drawing, curve)
    return drawing.or_none()


def _draw(drawing: Drawing, curve: Curve) -> None:
    best = [each for each in curve.best.values() if each.reached]
    others = [each for each in curve.tried if each not in best and each.reached]
    if not best:
        return
    axis = drawing.panel(curve.name)
    if curve.fit is not None:
        _draw_fit(drawing, axis, curve.name, curve.fit, [each.batch for each in best])
    for some, marker, colour, label in (
        (best, "o", canvas.COLOURS[0], "with the best rate"),
        (others, "x", canvas.SOFT, "with other rates"),
    ):
        numbers: list[Row] = [
            {"run": run.cell, "batch": each.batch, "rate": each.rate, "steps": steps}
            for each in some
            for run, steps in zip(each.runs, each.steps, strict=True)
            if steps is not None
        ]
        if numbers:
            xs, ys = [row["batch"] for row in numbers], [row["steps"] for row in numbers]
            (dots,) = axis.plot(xs, ys, marker, color=colour, linestyle="", markersize=4, label=label)
            drawing.mark(dots, numbers)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    for each in (axis.xaxis, axis.yaxis):
        each.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set(xlabel="batch", ylabel="steps to the target")
    canvas.legend(axis)


def _draw_fit(drawing: Drawing, axis: Axes, name: str, fit: BatchCurve, batches: Sequence[int]) -> None:
    xs = np.geomspace(min(batches), max(batches), DRAWN)
    found = [fit.at(float(batch), LEVEL) for batch in xs]
    axis.fill_between(
        xs,
        [each.low for each in found],
        [each.high for each in found],
        color=canvas.COLOURS[0],
        alpha=0.15,
        linewidth=0,
        label=f"{100 * LEVEL:.0f} % of further runs",
    )
    laws = [fit.law(float(batch)) for batch in xs]
    (line,) = axis.plot(xs, laws, color=canvas.COLOURS[0], label="by the law")
    drawing.mark(
        line,
        [
            {"run": f"{name}, by the law", "batch": float(x), "steps": steps}
            for x, steps in zip(xs, laws, strict=True)
        ],
    )
    # With as many samples whatever the batch is, steps would fall so.
    first = laws[0] * xs[0]
    axis.plot(xs, first / xs, color=canvas.SOFT, linestyle="--", linewidth=1, label="as many samples")
