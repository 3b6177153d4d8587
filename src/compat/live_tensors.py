"""Wrap torch's MemTracker, which is private: note when the memory of each tensor comes and goes."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._guards import TracingContext, active_fake_mode, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker, _MemRefType, _UpdateType, _WeakRefInfo
from torch.utils._python_dispatch import TorchDispatchMode

# What is made in a forward pass and has no name counts as this; all other tensors without one as that.
ACTIVATIONS, OTHER = "activations", "other"
# These follow tensors now.
_following: list[LiveTensors] = []


def exchanged(*tensors: Tensor) -> None:
    """Have whoever follows tensors now count these as buffers of exchange."""
    for live in _following:
        live.name("exchange", tensors)


@contextlib.contextmanager
def uncounted() -> Iterator[None]:
    """Have whoever follows tensors now not count those that are made within the block, by a backend.

    gloo copies what it is to reduce and scatter, and its threads free the copy when they come by.
    """
    for live in _following:
        live.counts = False
    try:
        yield
    finally:
        for live in _following:
            live.counts = True


def propagation_apart() -> AbstractContextManager[Any]:
    """Have DTensor find the forms of whole results, within the block, where `LiveTensors` doesn't look.

    Among tensors without data it would take them to be the rank's own.
    """
    return tracing(TracingContext(FakeTensorMode()))


class Change(NamedTuple):
    """Memory that came or went.

    Attributes:
        moment: when, in seconds of `time.perf_counter`.
        memory: stands for one tensor's memory, or for that of several in the same memory.
        size: the bytes that came; negative for those that went.
    """

    moment: float
    memory: Any
    size: int


class LiveTensors(MemTracker):
    """A mode that follows the memory of all tensors that operations within its block return.

    torch's MemTracker finds them. Its figures by module are left out: they need hooks on every layer, and
    know one forward pass a step.

    Attributes:
        changes: what came and went, in order.
        counts: whether what is made now is followed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[Change] = []
        self.counts = True
        self._names: dict[Any, str] = {}
        # As what each was made, which a name doesn't change.
        self._made: dict[Any, Any] = {}
        self._follows = True

    def __enter__(self) -> LiveTensors:
        # As MemTracker's own, without its hooks.
        self._fake_mode_on_entry = active_fake_mode()
        self._track_resize()
        TorchDispatchMode.__enter__(self)
        _following.append(self)
        return self

    def __exit__(self, *raised: Any) -> None:
        TorchDispatchMode.__exit__(self, *raised)
        self._restore_resize()
        _following.remove(self)
        self._follows = False

    def name(self, part: str, tensors: Iterable[Tensor]) -> None:
        """Count these tensors' memory as a part, from when it came on."""
        for tensor in itertools.chain.from_iterable(map(_strided, tensors)):
            for memory in self._update_and_maybe_create_winfos(tensor, _MemRefType.OTH):
                self._names[memory] = part

    def updating(self, updates: bool) -> None:
        """Say whether an optimizer updates weights: what is made then is no activation."""
        self._in_opt = updates

    def parts(self) -> Iterator[tuple[float, str, int]]:
        """Yield each change's moment, the part that it counts to, and its bytes."""
        for moment, memory, size in self.changes:
            made_forward = self._made[memory] is _MemRefType.ACT
            yield moment, self._names.get(memory, ACTIVATIONS if made_forward else OTHER), size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # Within a backward pass gradients are on where a forward pass is computed again.
        self._in_ac = torch.is_grad_enabled()
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _track(self, reftype: Any, t: Tensor) -> None:
        """Follow an operation's result; a sparse one is its indices and values."""
        for tensor in _strided(t) if self.counts else ():
            super()._track(reftype, tensor)

    def _update_snap(
        self,
        u_type: _UpdateType,
        winfo: _WeakRefInfo,
        old_mem_consumed: int | None = None,
        old_reftype: Any = None,
    ) -> None:
        """Note a change; MemTracker calls this method at each."""
        if not self._follows or u_type is _UpdateType.REF:
            return
        self._made.setdefault(winfo, winfo.reftype)
        size = -winfo.mem_consumed if u_type is _UpdateType.DEL else winfo.mem_consumed
        if u_type is _UpdateType.SIZE:
            size -= old_mem_consumed or 0
        self.changes.append(Change(time.perf_counter(), winfo, size))

    def _update_peak_stats(self, peak_state: Any) -> None:
        """Do nothing: peaks are found in `changes`."""


def _strided(tensor: Tensor) -> Sequence[Tensor]:
    """Return the tensors that have a tensor's memory; none for a layout that isn't known here."""
    if tensor.layout is torch.strided:
        return (tensor,)
    return (tensor._indices(), tensor._values()) if tensor.layout is torch.sparse_coo else ()
