"""Draw where a step's time goes, as far as a run's records tell: computing, exchanges, waiting, input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass

from src.measure.arithmetic import mean
from src.report import canvas, palette
from src.report.canvas import Drawing, Look, Point
from src.report.runs import StudyRun

# By part: its name, and its colour; what isn't told apart is left blank.
PARTS = {
    "compute": palette.SERIES[0].light,
    "exchange": palette.SERIES[5].light,
    "waiting": palette.IDLE.light,
    "input": palette.SERIES[3].light,
    "not told apart": "none",
}


@dataclass(frozen=True)
class StepTime:
    """Seconds of a mean step of a mean rank; `None` is not known, and then in `untold`.

    Attributes:
        compute: what was spent neither on input nor on the backend.
        exchange: on exchanges, waiting for the others in them included.
        waiting: of a stage, on its neighbours, sending and receiving included.
        input: on the next batch.
        untold: the rest, of which the records don't say what it went on.
    """

    compute: float | None
    exchange: float | None
    waiting: float | None
    input: float | None
    untold: float


def step_time(run: StudyRun) -> StepTime | None:
    """Return what `workers.csv` tells of a run's timed steps; `None` where it has no time or no step."""
    rows = run.ranks
    steps = sum(row.get("steps") or 0 for row in rows)
    whole = _sum(run, "seconds")
    if not steps or not whole:
        return None
    compute, backend = _sum(run, "busy_seconds"), _sum(run, "exchange_seconds")
    fraction = run.get("input_wait_fraction")
    fed = None if fraction is None else fraction * whole
    rest = whole - sum(part for part in (compute, backend, fed) if part is not None)
    staged = run.get("bubble_fraction") is not None or bool(run.cut.get("stages"))
    parts = (compute, None if staged else backend, backend if staged else None, fed)
    a, b, c, d = (None if part is None else part / steps for part in parts)
    # A rest within a percent is a difference of clocks.
    return StepTime(a, b, c, d, rest / steps if rest > 0.01 * whole else 0.0)


def _sum(run: StudyRun, column: str) -> float | None:
    """Return a column's sum over ranks, `None` where one of them doesn't have it."""
    values = [row.get(column) for row in run.ranks]
    known = [float(value) for value in values if isinstance(value, int | float)]
    return sum(known) if known and len(known) == len(values) else None


def step_times(points: Sequence[Point], look: Mapping[str, Look]) -> Drawing | None:
    """Draw the parts of each series' step on top of each other, as means of its runs."""
    drawing = Drawing()
    known = {point.run.cell: time for point in points if (time := step_time(point.run)) is not None}
    timed = [point for point in points if point.run.cell in known]
    for axis, groups in drawing.lined(timed, look, "bars"):
        seen: set[str] = set()
        for place, (series, alike) in enumerate(groups):
            left = 0.0
            whole = mean([sum(filter(None, astuple(known[p.run.cell]))) for p in alike]) or 0.0
            for index, (part, color) in enumerate(PARTS.items()):
                values = [astuple(known[p.run.cell])[index] for p in alike]
                found = mean([value for value in values if value is not None])
                if not found or len([v for v in values if v is not None]) < len(values):
                    continue
                blank = color == "none"
                (bar,) = axis.barh(
                    place, found * 1e3, left=left, height=0.66, color=color,
                    edgecolor=canvas.SOFT if blank else canvas.PAGE, linewidth=0.6,
                    linestyle=":" if blank else "-", label=None if part in seen else part,
                )  # fmt: skip
                seen.add(part)
                left += found * 1e3
                share = found / whole
                drawing.mark(
                    bar, [{"run": series.name, "part": part, "ms a step": found * 1e3, "share": share}]
                )
        axis.set(xlabel="milliseconds a step", xlim=(0, None))
        canvas.legend(axis)
    return drawing.or_none()
