"""Make programs that can be simulated of a step's kernels and exchanges, for other samples and devices."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from src.config.mistakes import ConfigError
from src.measure.kernels import FIELDS, GRADIENT, UNKNOWN, UPDATE, WAIT, Kernels, Mark, Trace
from src.predict.law import all_of_it
from src.predict.program import Event, Program

# The first bucket is smaller than others, so that exchanges begin early (torch's DistributedDataParallel).
FIRST_BUCKET = 2**20
# By what part of them kernels may be off a straight line over samples.
STRAIGHT = 0.01
KINDS = [FIELDS.index("size"), FIELDS.index("kind")]


def with_buckets(trace: Trace, most: float, ranks: int) -> Trace:
    """Return a trace with an all-reduce over `ranks` of each bucket of gradients, of some `most` bytes.

    Gradients come into buckets in the order in which they are there (Li et al. 2020, section 3.2.3).
    """
    marks: list[Mark] = []
    filled, limit, calls = 0.0, min(most, FIRST_BUCKET), 0
    last = max((n for n, mark in enumerate(trace.marks) if mark.kind == GRADIENT), default=-1)
    for number, mark in enumerate(trace.marks):
        if mark.kind != GRADIENT:
            marks.append(mark)
            continue
        filled += mark.size
        if filled >= limit or number == last:
            calls += 1
            marks.append(mark._replace(kind="all_reduce", size=filled, ranks=ranks, call=calls))
            filled, limit = 0.0, most
    return replace(trace, marks=tuple(marks))


def gathered_ahead(trace: Trace) -> Trace:
    """Return a trace with each gather handed over as soon as the one before it is there.

    A GPU's host hands kernels over long before they run: a gather waits for the link, and for its buffer,
    which the layer before has until it begins (torch's FSDP2, implicit prefetching).
    """
    marks = list(trace.marks)
    gathers = {mark.call for mark in marks if mark.kind == "all_gather"}
    for before, wait in itertools.pairwise(
        [mark for mark in trace.marks if mark.kind == WAIT and mark.call in gathers]
    ):
        number = next(
            n for n, each in enumerate(marks) if each.kind == "all_gather" and each.call == wait.call
        )
        there = marks.index(before)
        if number > there:
            gather = marks.pop(number)
            marks.insert(there + 1, gather._replace(place=before.place))
    return replace(trace, marks=tuple(marks))


def among(trace: Trace, ranks: Mapping[int, int]) -> Trace:
    """Return a trace whose exchanges are among other numbers of ranks: `ranks` by those of the trace."""
    marks = tuple(
        mark if mark.kind in (UPDATE, WAIT) else mark._replace(ranks=ranks.get(mark.ranks, mark.ranks))
        for mark in trace.marks
    )
    return replace(trace, marks=marks)


def program(trace: Trace, seconds: np.ndarray, host_seconds: float) -> Program:
    """Return the program of a step whose kernels take so long [kernels].

    A host that takes longer to start kernels than the device takes to run them holds it up.

    Raises:
        ConfigError: for a step with an exchange that isn't known.
    """
    if any(mark.kind == UNKNOWN for mark in trace.marks):
        raise ConfigError("it exchanges something by an operation that isn't known here")
    busy = np.concatenate([[0.0], np.cumsum(seconds)])
    started = np.concatenate([[0.0], np.cumsum(trace.kernels.field("launches"))]) * host_seconds

    def taken(begin: int, end: int) -> float:
        return float(max(busy[end] - busy[begin], started[end] - started[begin]))

    places = [0, *(mark.place for mark in trace.marks)]
    events = tuple(
        Event(mark.kind, round(mark.size), mark.ranks, mark.call, taken(begin, mark.place), mark.stride)
        for begin, mark in zip(places, trace.marks, strict=False)
    )
    return Program(events, taken(places[-1], len(seconds)))


@dataclass(frozen=True)
class Traces:
    """Traces of steps that differ in the samples of a micro-batch, and in the number of devices.

    Attributes:
        by_samples: of `devices` devices, by samples, in order.
        devices: how many were looked at.
        divided: what all devices do together of what each does its part of [kernels, fields].
        share: from a number of devices, the part of that which the first one does.
    """

    by_samples: Mapping[int, Trace]
    devices: int
    divided: np.ndarray
    share: Callable[[int], float]

    @classmethod
    def of(
        cls,
        found: Mapping[int, Trace],
        devices: int,
        more: Mapping[int, Trace] | None = None,
        share: Callable[[int], float] = all_of_it,
    ) -> Traces:
        """Check that what is asked of a device goes with samples, where there are three numbers of them.

        Args:
            found: traces of `devices` devices, by samples.
            devices: how many there are.
            more: a trace of more devices, with the fewest samples, by their number; none where nothing is
                divided.
            share: from a number of devices, the part that the first one has of what is divided.

        Raises:
            ConfigError: where steps of other samples, or on other numbers of devices, do other things.
        """
        first = found[min(found)]
        divided = np.zeros_like(first.kernels.values)
        for count, trace in (more or {}).items():
            if _kinds(trace) != _kinds(first):
                raise ConfigError("its steps run other operations on other numbers of devices")
            divided = (first.kernels.values - trace.kernels.values) / (share(devices) - share(count))
        made = cls(dict(sorted(found.items())), devices, divided, share)
        if any(_form(each) != _form(first) for each in found.values()):
            raise ConfigError("its steps run other operations with other samples")
        for samples in list(made.by_samples)[1:-1]:
            seen = made.by_samples[samples].kernels.values
            off = abs(made._line(samples) - seen).sum(axis=0)
            if (off > STRAIGHT * np.maximum(abs(seen).sum(axis=0), 1.0)).any():
                raise ConfigError("what it computes doesn't go with the samples of a micro-batch")
        return made

    def at(self, samples: int, devices: int) -> Trace:
        """Return the trace of micro-batches of so many samples on so many devices.

        Its exchanges are among those that were looked at (`among`).
        """
        few, *_, many = self.by_samples
        share = (samples - few) / (many - few)
        marks = tuple(
            a._replace(size=max(0.0, a.size + share * (b.size - a.size)))
            for a, b in zip(self.by_samples[few].marks, self.by_samples[many].marks, strict=True)
        )
        more = self.divided * (self.share(devices) - self.share(self.devices))
        return Trace(Kernels(np.maximum(0.0, self._line(samples) + more)), marks)

    def _line(self, samples: int) -> np.ndarray:
        few, *_, many = self.by_samples
        first, last = (self.by_samples[each].kernels.values for each in (few, many))
        values: np.ndarray = first + (samples - few) / (many - few) * (last - first)
        return values


def _form(trace: Trace) -> tuple[Sequence[Sequence[float]], Sequence[Mark]]:
    """Return what traces of other samples have in common with this one."""
    return trace.kernels.values[:, KINDS].tolist(), [mark._replace(size=0.0) for mark in trace.marks]


def _kinds(trace: Trace) -> tuple[Sequence[Sequence[float]], Sequence[tuple[int, str]]]:
    """Return what traces of other numbers of devices have in common with this one."""
    return trace.kernels.values[:, KINDS].tolist(), [(mark.place, mark.kind) for mark in trace.marks]
