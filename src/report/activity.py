"""Draw what devices, stages and workers do over time.

Every function returns a matplotlib figure, or `None` where the study has nothing to draw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from src.report import canvas
from src.report.canvas import DASHES, Look, Point

TRACES = 12
TRACE_POINTS = 240
TIMELINES = 8
# Letters on a line of a panel's title where three panels stand side by side.
WIDTH = 46
# Colours of what a stage does, and of what a worker with servers does; idle time is left blank.
ACTIVITIES = {
    **{"forward": "#0072B2", "loss": "#56B4E9", "backward": "#009E73", "optimizer": "#CC79A7"},
    **{"send": "#E69F00", "wait": "#d9d9d9"},
    **{"fetch": "#F0E442", "compute": "#0072B2", "push": "#D55E00"},
}
# Numbers of steps that are drawn of stages and of workers.
STAGE_STEPS, WORKER_STEPS = 2, 6


def traces(points: Sequence[Point], look: Mapping[str, Look]) -> Figure | None:
    """Draw the utilisation of each device over time, for up to `TRACES` runs taken evenly from all."""
    traced = [p for p in points if any(row.get("utilization") is not None for row in p.run.trace)]
    if not traced:
        return None
    count = min(TRACES, len(traced))
    chosen = [traced[place * len(traced) // count] for place in range(count)]
    columns = min(3, count)
    figure, axes = canvas.grid(
        -(-count // columns), columns, (3.4 * columns, 0.7 + 1.7 * -(-count // columns))
    )
    for axis, point in zip(axes, chosen, strict=False):
        start = min(row["time"] for row in point.run.trace)
        for place, device in enumerate(dict.fromkeys(str(row.get("device")) for row in point.run.trace)):
            rows = [row for row in point.run.trace if str(row.get("device")) == device]
            rows = [row for row in rows if row.get("utilization") is not None]
            rows = rows[:: max(1, len(rows) // TRACE_POINTS)]
            xs, ys = [row["time"] - start for row in rows], [row["utilization"] for row in rows]
            axis.plot(xs, ys, DASHES[place % 4], color=look[point.label].color, linewidth=1)
        row = point.row
        what = f"{row['model']} on {canvas.data(row)}, batch {row['batch']}"
        axis.set_title(f"{fill(canvas.series(point).name, WIDTH)}\n{fill(what, WIDTH)}", fontsize=7.5)
        axis.set_ylim(0, None)
    for axis in axes[count:]:
        axis.set_visible(False)
    figure.supxlabel("seconds", fontsize=9)
    figure.supylabel("utilisation", fontsize=9)
    return figure


def staleness(points: Sequence[Point], look: Mapping[str, Look]) -> Figure | None:
    """Draw the share of steps by the staleness of their gradients, one panel a run."""
    known = [(point, point.run.staleness) for point in points if point.row.get("staleness_mean") is not None]
    known = [(point, shares) for point, shares in known if shares]
    if not known:
        return None
    columns = min(3, len(known))
    rows = -(-len(known) // columns)
    figure, axes = canvas.grid(rows, columns, (3.4 * columns, 0.7 + 2.1 * rows))
    for axis, (point, shares) in zip(axes, known, strict=False):
        axis.bar(list(shares), list(shares.values()), color=look[point.label].color)
        mean = point.row["staleness_mean"]
        axis.set_title(
            f"{fill(canvas.series(point).name, WIDTH)}\n{canvas.data(point.row)}: mean {mean:.2f}, "
            f"most {max(shares)}",
            fontsize=7.5,
        )
        axis.set_ylim(0, 1)
    for axis in axes[len(known) :]:
        axis.set_visible(False)
    figure.supxlabel("updates between fetch and effect", fontsize=9)
    figure.supylabel("share of steps", fontsize=9)
    return figure


def timelines(points: Sequence[Point]) -> Figure | None:
    """Draw the first recorded steps of stages or workers, for up to `TIMELINES` runs taken evenly."""
    recorded = [point for point in points if point.run.timeline]
    if not recorded:
        return None
    count = min(TIMELINES, len(recorded))
    chosen = [recorded[place * len(recorded) // count] for place in range(count)]
    heights = [0.75 + 0.32 * point.row["workers"] for point in chosen]
    figure, axes = canvas.grid(count, 1, (10.5, sum(heights) + 0.5), height_ratios=heights)
    for axis, point in zip(axes, chosen, strict=True):
        kind = "worker" if any(event["cat"] == "compute" for event in point.run.timeline) else "stage"
        drawn = WORKER_STEPS if kind == "worker" else STAGE_STEPS
        steps = sorted({event["args"]["step"] for event in point.run.timeline})[:drawn]
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
        axis.set_yticks(range(point.row["workers"]), [f"{kind} {n}" for n in range(point.row["workers"])])
        axis.invert_yaxis()
        axis.grid(axis="y", visible=False)
        bubble, ideal = point.row.get("bubble_fraction"), point.row.get("bubble_ideal")
        measured = f", idle {bubble:.0%}" if bubble is not None else ""
        measured += f" (ideal {ideal:.0%})" if ideal is not None and measured else ""
        axis.set_title(
            f"{point.label}, {point.row['model']} on {canvas.data(point.row)}, batch "
            f"{point.row['batch']}{measured}",
            fontsize=8,
        )
    seen = {event["cat"] for point in chosen for event in point.run.timeline}
    names = [name for name in ACTIVITIES if name in seen]
    handles = [Rectangle((0, 0), 1, 1, color=ACTIVITIES[name]) for name in names]
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), fontsize=8)
    axes[-1].set_xlabel("milliseconds")
    return figure
