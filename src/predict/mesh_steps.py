"""Make steps of meshes from a look at one copy: a whole model, its shards, or parts of its layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from src.config import ConfigError
from src.config.run_config import Degrees
from src.measure.kernels import UPDATE, WAIT, Mark, Trace
from src.measure.live_bytes import PARTS
from src.predict.constants import Constants
from src.predict.law import Law
from src.predict.layout import Layout, layout
from src.predict.looked import Looked
from src.predict.row import Row
from src.predict.step import Parts
from src.predict.traced import programs
from src.predict.traced.programs import Traces
from src.predict.traced.steps import TracedStep

GRADIENTS = PARTS.index("gradients")


@dataclass(frozen=True)
class Copy:
    """A copy of a model on one device or several, as it was looked at with one micro-batch and with two.

    Attributes:
        one: of a step of one micro-batch.
        two: of a step of two, of which the first one's gradients are kept; `None` where nobody has looked.
    """

    one: Looked
    two: Looked | None = None

    def at_start(self) -> float:
        """Return the bytes of weights on a device before the first step."""
        return self.one.at_start * self.one.weights

    def held(self, degrees: Degrees, samples: int, microbatches: int) -> Mapping[str, float]:
        """Return the bytes by part at the moment when a device holds most.

        Args:
            degrees: of the mesh, of which each copy has its shards or parts.
            samples: of a micro-batch.
            microbatches: of a step.

        Raises:
            ConfigError: where nobody has looked at several.
        """
        return self._looked(microbatches).law.most(_inner(degrees) or degrees.data, samples)

    def _looked(self, microbatches: int) -> Looked:
        if microbatches == 1:
            return self.one
        if self.two is None:
            raise ConfigError("several micro-batches weren't looked at")
        return self.two

    def parts(self, row: Row, degrees: Degrees, samples: int, microbatches: int) -> Parts:
        """Return the seconds of a step of all copies, by part, by what is believed of machines.

        Raises:
            ConfigError: where it can't be had.
        """
        plan = layout(row)
        one = _parts(self.one, row, plan, degrees, samples)
        if microbatches == 1:
            return one
        two = _parts(self._looked(microbatches), row, plan, degrees, samples)
        # Each further micro-batch takes as much longer as the second one.
        further = {key: max(0.0, value - getattr(one, key)) for key, value in vars(two).items()}
        times = microbatches - 2
        return Parts(**{key: value + times * further[key] for key, value in vars(two).items()})


def _inner(degrees: Degrees) -> int:
    """Return on how many devices a copy is, 0 of a whole one."""
    inner = degrees.shard * degrees.tensor
    return inner if inner > 1 else 0


def _parts(looked: Looked, row: Row, plan: Layout, degrees: Degrees, samples: int) -> Parts:
    if isinstance(looked.traces, str):
        raise ConfigError(looked.traces)
    assert isinstance(looked.traces, Traces), "stages have steps of their own"
    inner = _inner(degrees)
    count = inner or degrees.data
    trace = programs.among(looked.traces.at(samples, count), {looked.devices: count})
    if degrees.shard > 1 and degrees.data > 1:
        trace = _with_sums_of_shards(trace, degrees.data, inner)
    elif inner and degrees.data > 1:
        assert isinstance(looked.law, Law)
        size = float(looked.law.sizes(inner, samples)[:, GRADIENTS].max())
        trace = _with_sum(trace, size, degrees.data, inner)
    elif degrees.data > 1:
        trace = programs.with_buckets(trace, looked.bucket_bytes, count)
    if degrees.shard > 1:
        trace = programs.gathered_ahead(trace)
    return TracedStep(row, plan, trace).parts(Constants())


def _with_sums_of_shards(trace: Trace, copies: int, stride: int) -> Trace:
    """Return a trace in which copies sum each shard of gradients as soon as it is there (HSDP)."""
    marks: list[Mark] = []
    call = max((mark.call for mark in trace.marks), default=0)
    for mark in trace.marks:
        marks.append(mark)
        if mark.kind == "reduce_scatter":
            call += 1
            marks.append(Mark(mark.place, "all_reduce", mark.size / stride, copies, stride, call))
    return replace(trace, marks=tuple(marks))


def _with_sum(trace: Trace, size: float, copies: int, stride: int) -> Trace:
    """Return a trace in which copies sum `size` bytes of gradients before the update, and wait for that."""
    place = next(number for number, mark in enumerate(trace.marks) if mark.kind == UPDATE)
    at, call = trace.marks[place].place, 1 + max(mark.call for mark in trace.marks)
    summed = (Mark(at, "all_reduce", size, copies, stride, call), Mark(at, WAIT, call=call))
    return replace(trace, marks=(*trace.marks[:place], *summed, *trace.marks[place:]))
