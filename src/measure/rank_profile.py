"""Read what one rank did in its profiled steps: from the trace of its framework, and from its own clock.

Traces are Chrome's trace events, as torch.profiler exports them: `ts` and `dur` in microseconds, the former
since `baseTimeNanoseconds`, which counts from 1970. All times here are nanoseconds since 1970, as integers:
a double has no microseconds left there.
"""

from __future__ import annotations

import gzip
import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from src.measure import intervals, traced_exchange
from src.measure.activity_log import INPUT, STEP, WAITING
from src.measure.intervals import Interval

OPERATION = "cpu_op"
ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
# Operations that hand an exchange to a backend; what they start is an exchange of its own.
STARTS_EXCHANGE = ("c10d::", "record_param_comms")
AUTOGRAD = "autograd::engine::evaluate_function: "
# A double holds the trace's times to a nanosecond or two: what is within another operation may seem to end
# after it.
ROUNDING = 10


class Span(NamedTuple):
    """A time in which a rank did something.

    Attributes:
        begin, end: nanoseconds since 1970.
        name: what it did.
        size: bytes that it exchanged, `None` where that is not known.
    """

    begin: int
    end: int
    name: str
    size: int | None = None

    @property
    def interval(self) -> Interval:
        """Return when it was."""
        return self.begin, self.end


@dataclass
class RankProfile:
    """A record of what one rank did in its profiled steps, on the parent's clock.

    Attributes:
        rank: its number.
        host: where it ran.
        steps: the steps, by number.
        input: waits for batches.
        waiting: waits for the backend.
        compute: outermost operations, or a GPU's kernels and copies.
        exchanges: what was exchanged, by kind and group.
    """

    rank: int
    host: str
    steps: dict[int, Interval] = field(default_factory=dict)
    input: list[Span] = field(default_factory=list)
    waiting: list[Span] = field(default_factory=list)
    compute: list[Span] = field(default_factory=list)
    exchanges: dict[tuple[str, str], list[Span]] = field(default_factory=lambda: defaultdict(list))


def read(trace: Path, activities: Path, *, rank: int, host: str | None, ahead: float) -> RankProfile:
    """Return what a rank did.

    Args:
        trace: the rank's trace, as gzipped JSON.
        activities: the rows of its `ActivityLog`, as JSON.
        rank: its number.
        host: the name of its host, `None` for the one that stands in the trace.
        ahead: seconds by which the clock of its host is ahead of the parent's.

    Raises:
        OSError: where a file can't be read.
        EOFError: where the trace is cut short.
        ValueError, TypeError, LookupError, AttributeError, zlib.error: where a file is damaged.
    """
    with gzip.open(trace, "rt", encoding="utf-8") as file:
        whole = json.load(file)
    rows = json.loads(activities.read_text())
    earlier = round(ahead * 1e9)
    profile = RankProfile(rank, host or str(whole.get("host_name", "")))
    _add_activities(profile, rows, earlier)
    events = [event for event in whole["traceEvents"] if event.get("ph") == "X"]
    base = int(whole["baseTimeNanoseconds"]) - earlier
    told = intervals.union(span.interval for spans in profile.exchanges.values() for span in spans)
    for key, exchange in traced_exchange.exchanges(events, whole.get("distributedInfo") or {}):
        begin, end = _times(exchange.event, base)
        if not _within(told, (begin + end) // 2):
            profile.exchanges[key].append(Span(begin, end, key[0], exchange.size))
    if any(event.get("cat") in ON_GPU for event in events):
        profile.compute = [
            Span(*_times(event, base), event["name"])
            for event in events
            if event.get("cat") in ON_GPU and not traced_exchange.is_nccl_kernel(event)
        ]
    else:
        blocked = intervals.union(span.interval for span in (*profile.input, *profile.waiting))
        profile.compute = [piece for span in _operations(events, base) for piece in _pieces(span, blocked)]
    for spans in (profile.compute, *profile.exchanges.values()):
        spans.sort()
    return profile


def _times(event: Mapping[str, Any], base: int) -> Interval:
    """Return when an event was, in nanoseconds since 1970."""
    begin = base + round(event["ts"] * 1000)
    return begin, begin + round(event["dur"] * 1000)


def _add_activities(profile: RankProfile, rows: Iterable[Sequence[Any]], earlier: int) -> None:
    """Add the rows of a rank's `ActivityLog`, so many nanoseconds earlier."""
    for activity, group, there_begin, there_end, size in rows:
        begin, end = int(there_begin) - earlier, int(there_end) - earlier
        if activity == STEP:
            profile.steps[size] = begin, end
        elif activity == INPUT:
            profile.input.append(Span(begin, end, INPUT))
        elif activity == WAITING:
            profile.waiting.append(Span(begin, end, WAITING))
        else:
            profile.exchanges[activity, group].append(Span(begin, end, activity, size or None))


def _operations(events: Iterable[dict[str, Any]], base: int) -> Iterator[Span]:
    """Yield each thread's outermost operations, without those that start or belong to an exchange."""
    threads: dict[Any, list[tuple[int, int, str, bool]]] = defaultdict(list)
    for event in events:
        name, counts = event["name"], event.get("cat") == OPERATION
        if counts or traced_exchange.fills_its_thread(event):
            begin, end = _times(event, base)
            counts = counts and not name.startswith(STARTS_EXCHANGE)
            threads[event["pid"], event["tid"]].append((begin, -end, name.removeprefix(AUTOGRAD), counts))
    for rows in threads.values():
        last = 0
        for begin, minus_end, name, counts in sorted(rows):
            end = -minus_end
            if end <= last + ROUNDING:
                continue
            if counts:
                yield Span(max(begin, last), end, name)
            last = end


def _within(told: Sequence[Interval], moment: int) -> bool:
    """Return whether a moment lies within exchanges of which the rank itself tells, by kind and axis.

    What the backend tells of meanwhile is the same, or how it does that: gloo scatters by an all-reduce.
    """
    place = bisect_right(told, moment, key=lambda interval: interval[0]) - 1
    return place >= 0 and moment <= told[place][1]


def _pieces(span: Span, blocked: Sequence[Interval]) -> Iterator[Span]:
    """Yield what is left of an operation without the times, in order, in which the rank was `blocked`.

    A hook that averages gradients is called within an operation of the backward pass.
    """
    first = bisect_right(blocked, span.begin, key=lambda interval: interval[1])
    last = bisect_right(blocked, span.end, key=lambda interval: interval[0])
    for begin, end in intervals.without([span.interval], blocked[first:last]):
        yield span._replace(begin=begin, end=end)
