"""A process group of ranks that all do what this one does, of which this one alone is there.

What others would send is what this rank hands over itself: a sum is so many times its own tensor, a gather so
many copies of it. So a rank of many computes what it would among them, on tensors of the same sizes, and
finite ones; what it computes is no model. Nothing is sent, and each call can be observed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

BACKEND = "alike"
# Their annotations differ from one version of torch to the next, and so do the names of their methods.
_Group: Any = dist.ProcessGroup
_Work: Any = dist.Work
SUM = dist.ReduceOp.SUM


class Observer(Protocol):
    """An observer of a group's calls."""

    def begin(self) -> None:
        """Note that a call begins."""

    def exchanged(self, kind: str, size: int, ranks: int) -> int:
        """Note that the call that has begun is done, in which the rank handed over `size` bytes.

        Returned is a number of the call, by which `waited` tells it from others.
        """

    def waited(self, number: int) -> None:
        """Note that the rank begins to wait for a call."""


class _Done(_Work):
    """The work of a call that is done, with its result."""

    def __init__(self, result: list[Tensor], wait: Callable[[], None]) -> None:
        super().__init__()
        self._future: torch.futures.Future[list[Tensor]] = torch.futures.Future()
        self._future.set_result(result)
        self._wait = wait

    def wait(self, timeout: Any = None) -> bool:
        """Note the wait."""
        self._wait()
        return True

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """Return the future of the result."""
        return self._future


class AlikeRanks(_Group):
    """A group of ranks that do what this one does; each method is one of torch's process groups."""

    observer: Observer | None = None

    def __init__(self, rank: int, ranks: int) -> None:
        super().__init__(rank, ranks)
        self._rank, self._ranks = rank, ranks

    def size(self) -> int:
        """Return the number of ranks."""
        return self._ranks

    def getBackendName(self) -> str:
        """Return the backend's name."""
        return BACKEND

    @property
    def group_name(self) -> str:
        """Return the name by which torch knows the group."""
        return str(dist.distributed_c10d._world.pg_names[self])

    @property
    def pg_name(self) -> str:
        """Return the same, as torch asks for it in other places."""
        return self.group_name

    def _call(
        self, kind: str, given: Sequence[Tensor], result: Sequence[Tensor], do: Callable[[], None]
    ) -> _Done:
        """Do what a call leaves in its result, and tell the observer, unless there is a single rank."""
        observer = AlikeRanks.observer
        if observer is None or self._ranks == 1:
            do()
            return _Done(list(result), lambda: None)
        observer.begin()
        do()
        number = observer.exchanged(kind, sum(map(_nbytes, given)), self._ranks)
        return _Done(list(result), lambda: observer.waited(number))

    def _reduce(self, tensor: Tensor, operation: Any) -> None:
        if operation == SUM and tensor.dtype != torch.bool:
            tensor.mul_(self._ranks)

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> _Done:
        """Reduce in place."""

        def do() -> None:
            for tensor in tensors:
                self._reduce(tensor, SUM if opts is None else opts.reduceOp)

        return self._call("all_reduce", tensors, tensors, do)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> _Done:
        """Reduce several tensors in place."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: list[Tensor], opts: Any = None) -> _Done:
        """Reduce in place, on the root alone."""
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> _Done:
        """Leave what every rank has."""
        return self._call("broadcast", tensors, tensors, lambda: None)

    def barrier(self, opts: Any = None) -> _Done:
        """Wait for nobody."""
        return self._call("barrier", (), (), lambda: None)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> _Done:
        """Fill all ranks' places with what this one gives."""

        def do() -> None:
            for places, own in zip(outputs, inputs, strict=True):
                for place in places:
                    place.copy_(own)

        return self._call("all_gather", inputs, [place for places in outputs for place in places], do)

    def all_gather_single(self, output: Tensor, own: Tensor, opts: Any = None) -> _Done:
        """Fill all ranks' parts of one tensor with what this one gives."""
        return self._call("all_gather", [own], [output], lambda: _fill(output, own, self._ranks))

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> _Done:
        """Do so with several tensors."""

        def do() -> None:
            for output, own in zip(outputs, inputs, strict=True):
                _fill(output, own, self._ranks)

        return self._call("all_gather", inputs, outputs, do)

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> _Done:
        """Reduce this rank's part of what it gives."""

        def do() -> None:
            for output, parts in zip(outputs, inputs, strict=True):
                output.copy_(parts[self._rank])
                self._reduce(output, SUM if opts is None else opts.reduceOp)

        return self._call("reduce_scatter", [part for parts in inputs for part in parts], outputs, do)

    def reduce_scatter_single(self, output: Tensor, given: Tensor, opts: Any = None) -> _Done:
        """Reduce this rank's part of one tensor."""
        return self.reduce_scatter_single_coalesced([output], [given], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> _Done:
        """Do so with several tensors."""

        def do() -> None:
            for output, given in zip(outputs, inputs, strict=True):
                output.copy_(given.reshape(self._ranks, -1)[self._rank].view_as(output))
                self._reduce(output, SUM if opts is None else opts.reduceOp)

        return self._call("reduce_scatter", inputs, outputs, do)

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> _Done:
        """Fill all ranks' places with what this one gives, if it is the root."""
        return self.allgather(outputs, inputs) if outputs else self._call("gather", inputs, (), lambda: None)

    def all_to_all_single(
        self,
        output: Tensor,
        given: Tensor,
        output_sizes: Any = None,
        input_sizes: Any = None,
        opts: Any = None,
    ) -> _Done:
        """Exchange parts of a tensor, which are the same for all."""

        def do() -> None:
            output.copy_(given.view_as(output))

        return self._call("all_to_all", [given], [output], do)

    # As torch calls them before 2.13.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


def _nbytes(tensor: Tensor) -> int:
    if not tensor.is_sparse:
        return tensor.nbytes
    return int(tensor._values().nbytes + tensor._indices().nbytes)


def _fill(output: Tensor, own: Tensor, ranks: int) -> None:
    """Fill a tensor with as many copies of another as there are ranks."""
    output.view(ranks, -1).copy_(own.reshape(1, -1).expand(ranks, -1))


@contextlib.contextmanager
def alike_ranks(ranks: int, observer: Observer) -> Iterator[None]:
    """Have this process be the first of so many ranks, all alike, whose calls `observer` is told of."""
    if BACKEND.upper() not in dist.Backend.__dict__:
        dist.Backend.register_backend(
            BACKEND, lambda store, rank, size, timeout: AlikeRanks(rank, size), devices=["cpu", "cuda"]
        )
    dist.init_process_group(BACKEND, rank=0, world_size=ranks, store=dist.HashStore())
    AlikeRanks.observer = observer
    try:
        yield
    finally:
        AlikeRanks.observer = None
        dist.destroy_process_group()


def others_are_there() -> bool:
    """Return whether the other ranks of this process's group are processes."""
    return dist.get_backend() != BACKEND
