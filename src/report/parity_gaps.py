"""Draw how near each run's losses are to those of the single run, beside what parity allows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from src.measure.arithmetic import PARITY_BOUND, ROUNDING_GAPS
from src.report import canvas
from src.report.canvas import Drawing, Look, Point

# A gap of zero, or one below a last digit in single precision, stands at the axis' begin.
LEAST = 1e-8


def parity_gaps(points: Sequence[Point], look: Mapping[str, Look]) -> Drawing | None:
    """Draw the largest gap of each series on a logarithmic axis, and as a line up to where parity holds."""
    drawing = Drawing()
    known = [p for p in points if _is_number(p.row.get("parity_gap"))]
    for axis, groups in drawing.lined(known, look, "lines"):
        for place, (series, alike) in enumerate(groups):
            worst = max(alike, key=lambda point: point.row["parity_gap"])
            gap, own = worst.row["parity_gap"], worst.row.get("rounding_gap") or 0.0
            bound = max(PARITY_BOUND, ROUNDING_GAPS * own)
            style = look[series.label]
            axis.plot([LEAST, bound], [place] * 2, color=canvas.LINE, linewidth=7, solid_capstyle="butt")
            axis.plot([bound], [place], "|", color=canvas.SOFT, markersize=11, markeredgewidth=1.5)
            (dot,) = axis.plot([max(gap, LEAST)], [place], style.marker, color=style.color, markersize=6)
            numbers = {"gap": gap, "allowed": bound, "parity": worst.row.get("parity")}
            drawing.mark(dot, [{"run": worst.run.cell, **numbers}])
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter(lambda gap, _: f"{gap:.0e}")
        axis.set(xlabel="largest gap of the first ten losses", xlim=(LEAST * 0.7, None))
    return drawing.or_none()


def _is_number(gap: object) -> bool:
    return isinstance(gap, int | float) and math.isfinite(gap)
