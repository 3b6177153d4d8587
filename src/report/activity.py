"""Draw what devices, links, stages and workers do over time.

Every function returns a drawing of one panel a run, or `None` where the study has nothing to draw.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.patches import Rectangle

from src.config.schedules import SCHEDULES
from src.partition.schedules.measured import Schedule
from src.partition.schedules.simulation import Simulated
from src.report import canvas, palette
from src.report.canvas import DASHES, Drawing, Look, Point
from src.report.runs import Row

TRACES = 6
TRACE_POINTS = 60
TIMELINES = 6
_BLUE, _BROWN, _GREEN, _PINK, _SKY, _ORANGE, _ = canvas.COLOURS
# These are the colours of what a stage does, and of what a worker with servers does; idle time is left blank.
ACTIVITIES = {
    **{"forward": _BLUE, "loss": _BROWN, "backward": _GREEN, "optimizer": _PINK},
    **{"weight_backward": _SKY, "send": _ORANGE, "wait": palette.IDLE.light},
    **{"fetch": _SKY, "compute": _BLUE, "push": _ORANGE},
}
# Numbers of steps that are drawn of stages and of workers.
STAGE_STEPS, WORKER_STEPS = 2, 6


def traces(points: Sequence[Point], look: Mapping[str, Look]) -> Drawing | None:
    """Draw the utilisation of each device over time, for up to `TRACES` runs taken evenly from all."""
    drawing = Drawing()
    traced = [p for p in points if any(row.get("utilization") is not None for row in p.run.trace)]
    for point in drawing.some(traced, TRACES, "runs"):
        lines: dict[str, list[tuple[float, float]]] = {}
        for row in point.run.trace:
            if row.get("utilization") is not None:
                lines.setdefault(str(row.get("device")), []).append((row["time"], row["utilization"]))
        _over_time(drawing, point, look, lines, "utilisation")
    return drawing.or_none()


def traffic(points: Sequence[Point], look: Mapping[str, Look]) -> Drawing | None:
    """Draw what each host sent over time, where its counters saw the run's traffic alone."""
    drawing = Drawing()
    known = [(p, lines) for p in points if (lines := _sent(p))]
    for point, lines in drawing.some(known, TRACES, "runs"):
        _over_time(drawing, point, look, lines, "MB/s sent")
    return drawing.or_none()


def _sent(point: Point) -> dict[str, list[tuple[float, float]]]:
    """Return megabytes a second by host and moment; nothing where other processes use the interfaces, too."""
    alone = (point.run.environment.get("isolation") or {}).get("namespace")
    counters: dict[str, dict[float, float]] = {}
    for row in point.run.trace:
        host = str(row.get("host") or "")
        if row.get("network_sent_bytes") is not None and (alone or host):
            counters.setdefault(host, {})[row["time"]] = row["network_sent_bytes"]
    return {
        host: [
            (end, (sent[end] - sent[begin]) / (end - begin) / 1e6)
            for begin, end in zip(list(sent), list(sent)[1:], strict=False)
            # A counter that begins anew says nothing of the time before.
            if end > begin and sent[end] >= sent[begin]
        ]
        for host, sent in counters.items()
        if len(sent) > 1 and max(sent.values()) > min(sent.values())
    }


def _over_time(
    drawing: Drawing,
    point: Point,
    look: Mapping[str, Look],
    lines: Mapping[str, Sequence[tuple[float, float]]],
    heading: str,
) -> None:
    """Draw a panel of a run's lines, by device or host, from the first row of its trace on."""
    row = point.row
    title = f"{canvas.series(point).name}: {row['model']} on {canvas.data(row)}, batch {row['batch']}"
    title += _repetition(point)
    axis = drawing.panel(title, 2.0)
    start = min(each["time"] for each in point.run.trace)
    for place, (name, pairs) in enumerate(lines.items()):
        thinned = pairs[:: -(-len(pairs) // TRACE_POINTS)]
        xs, ys = [time - start for time, _ in thinned], [value for _, value in thinned]
        style: dict[str, Any] = {"color": look[point.label].color, "linewidth": 1.2}
        (line,) = axis.plot(xs, ys, DASHES[place % 4], label=name or None, **style)
        numbers = zip(xs, ys, strict=True)
        whole = f"{point.run.cell}, {name}: mean {heading} {canvas.number(sum(ys) / len(ys))}"
        drawing.mark(
            line,
            [{"run": point.run.cell, "of": name, "seconds": round(x, 2), heading: y} for x, y in numbers],
            whole=whole,
        )
    axis.set(xlabel="seconds", ylabel=heading, ylim=(0, None))
    if len(lines) > 1:
        canvas.legend(axis)


def staleness(points: Sequence[Point], look: Mapping[str, Look]) -> Drawing | None:
    """Draw the share of steps by the staleness of their gradients, one panel a run."""
    drawing = Drawing()
    known = [(point, point.run.staleness) for point in points if point.row.get("staleness_mean") is not None]
    # A single bar says no more than the mean in the text.
    known = [(point, shares) for point, shares in known if len(shares) > 1]
    for point, shares in drawing.some(known, TRACES, "runs"):
        mean = point.row["staleness_mean"]
        title = (
            f"{canvas.series(point).name}: {canvas.data(point.row)}, mean {mean:.2f}, most {max(shares):g}"
        )
        axis = drawing.panel(title, 2.2)
        # A step's mean over several micro-batches may lie between two whole numbers.
        width = 0.8 * min(later - before for before, later in itertools.pairwise(sorted(shares)))
        for stale, share in shares.items():
            (bar,) = axis.bar([stale], [share], width, color=look[point.label].color)
            drawing.mark(bar, [{"run": point.run.cell, "staleness": stale, "share": share}])
        axis.set(
            xlabel="updates between the weights of a gradient and its own",
            ylabel="share of steps",
            ylim=(0, 1),
        )
    return drawing.or_none()


def timelines(points: Sequence[Point]) -> Drawing | None:
    """Draw the first recorded steps of stages or workers, for up to `TIMELINES` runs taken evenly."""
    drawing = Drawing()
    for point in drawing.some([p for p in points if p.run.timeline], TIMELINES, "runs"):
        kind = "worker" if any(event["cat"] == "compute" for event in point.run.timeline) else "stage"
        together = kind == "stage" and point.run.get("strategy.synchronous") is not False
        steps = sorted({event["args"]["step"] for event in point.run.timeline})
        drawn = steps[: STAGE_STEPS if together else WORKER_STEPS]
        events = [event for event in point.run.timeline if event["args"]["step"] in drawn]
        _timeline(drawing, (point, point.run.cell), kind, _title(point), events)
        if (simulated := _simulated(point)) is not None:
            idle = f"{float(simulated.bubble_fraction):.0%}"
            title = f"{point.label}: one step, simulated of its own passes without transfers, idle {idle}"
            made = [
                {"pid": rank, "cat": activity, "ts": 1e6 * start, "dur": 1e6 * (end - start)}
                for rank, rows in simulated.timelines().items()
                for _, activity, _, start, end in rows
            ]
            _timeline(drawing, (point, f"{point.run.cell}, simulated"), kind, title, made)
    return drawing.or_none()


def _simulated(point: Point) -> Simulated | None:
    """Simulate a step of the run's schedule; `None` where it has none that is known, or copies of stages."""
    run, name = point.run, point.run.get("strategy.schedule")
    if name not in SCHEDULES or run.stages != run.get("workers"):
        return None
    virtual, microbatches = run.get("strategy.virtual_stages") or 1, run.get("microbatches") or 1
    schedule = Schedule(name, run.stages, virtual, microbatches)
    try:
        return schedule.simulated(*schedule.passes(run.timeline))
    except ValueError:
        return None


def _timeline(
    drawing: Drawing, named: tuple[Point, str], kind: str, title: str, events: Sequence[Row]
) -> None:
    """Draw a panel of complete events, a line for each worker or stage, of a run and what marks call it."""
    point, name_of_run = named
    zero, workers = min(event["ts"] for event in events), point.row["workers"]
    seen = [name for name in ACTIVITIES if any(event["cat"] == name for event in events)]
    axis = drawing.panel(title, 1.1 + 0.34 * workers)
    for activity in seen:
        for stage in range(workers):
            chosen = [event for event in events if event["pid"] == stage and event["cat"] == activity]
            if chosen:
                spans = [((event["ts"] - zero) / 1e3, event["dur"] / 1e3) for event in chosen]
                style: dict[str, Any] = {
                    "facecolor": ACTIVITIES[activity],
                    "edgecolor": canvas.PAGE,
                    "linewidth": 0.3,
                }
                boxes = axis.broken_barh(spans, (stage - 0.4, 0.8), **style)
                drawing.mark(boxes, [_span(name_of_run, kind, event, zero) for event in chosen])
    shown = "worker" if (point.run.get("strategy.virtual_stages") or 1) > 1 else kind
    axis.set_yticks(range(workers), [f"{shown} {n}" for n in range(workers)])
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    axis.set_xlabel("milliseconds")
    for name in seen:
        axis.add_patch(Rectangle((0, 0), 0, 0, facecolor=ACTIVITIES[name], label=name))
    canvas.legend(axis)


def _title(point: Point) -> str:
    bubble, ideal = point.row.get("bubble_fraction"), point.row.get("bubble_ideal")
    measured = f", idle {bubble:.0%}" if bubble is not None else ""
    measured += f" (ideal {ideal:.0%})" if ideal is not None and measured else ""
    what = f"{point.row['model']} on {canvas.data(point.row)}, batch {point.row['batch']}"
    return f"{point.label}: {what}{_repetition(point)}{measured}"


def _repetition(point: Point) -> str:
    number = point.row.get("repetition") or 1
    return f", repetition {number}" if number > 1 else ""


def _span(run: str, kind: str, event: Row, zero: float) -> Row:
    return {
        "run": run,
        kind: event["pid"],
        "activity": event["cat"],
        "from ms": round((event["ts"] - zero) / 1e3, 3),
        "ms": round(event["dur"] / 1e3, 3),
    }
