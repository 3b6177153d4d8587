"""Tell the exchanges of a framework's own backends in a rank's trace.

On a CPU torch has an event of each, as `gloo:all_reduce`, from when the rank hands it over until it is done;
those of point-to-point stay with the thread that asked for them. TensorFlow's are made to look like these. On
a GPU they are NCCL's kernels, whose arguments tell what they are.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

Event = Mapping[str, Any]

BACKENDS = ("gloo:", "nccl:", "mpi:", "ucc:", "tensorflow:")
SEND, RECEIVE = "send", "recv"
# The operations that start those, and the place of the other rank among their inputs.
STARTED_BY = {"c10d::send": SEND, "c10d::recv_": RECEIVE}
PEER = 2
# One name for what has several.
KINDS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "_allgather_base": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "alltoall": "all_to_all",
}
TYPE_BYTES = {
    **{"bool": 1, "unsigned char": 1, "signed char": 1, "short int": 2, "c10::Half": 2, "c10::BFloat16": 2},
    **{"int": 4, "float": 4, "long int": 8, "double": 8},
    # As NCCL's kernels have them.
    **{"Byte": 1, "Char": 1, "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4, "Long": 8, "Double": 8},
}
ALL_RANKS = "all ranks"


class Exchange(NamedTuple):
    """An exchange in a trace.

    Attributes:
        event: what tells of it.
        size: bytes of the rank's tensor, `None` where the event doesn't tell.
    """

    event: Event
    size: int | None


def is_nccl_kernel(event: Event) -> bool:
    """Return whether an event is a kernel by which NCCL exchanges."""
    return event.get("cat") == "kernel" and event["name"].startswith("nccl")


def fills_its_thread(event: Event) -> bool:
    """Return whether an event is a collective: a thread of its backend does nothing else meanwhile."""
    kind = _kind_on_host(event)
    return kind is not None and kind not in (SEND, RECEIVE)


def exchanges(
    events: Sequence[Event], distributed: Mapping[str, Any]
) -> Iterator[tuple[tuple[str, str], Exchange]]:
    """Yield ((kind, group), exchange) of each exchange in a trace.

    The group says among whom, as `all ranks`, `to rank 1`, or the name of a process group; it is empty where
    the trace doesn't tell.

    Args:
        events: the trace's complete events.
        distributed: what the trace says of process groups.
    """
    groups = {
        str(group["pg_name"]): _group_name(group, distributed)
        for group in distributed.get("pg_config") or []
        if "pg_name" in group
    }
    only = next(iter(groups.values())) if len(groups) == 1 else ""
    kernels = [event for event in events if is_nccl_kernel(event)]
    for event in kernels:
        yield _of_kernel(event, groups)
    peers = _Peers(events)
    for event in events:
        kind = _kind_on_host(event)
        if kind is None or (kernels and event["name"].startswith("nccl:")):
            continue
        group = peers.of(event, kind) if kind in (SEND, RECEIVE) else only
        arguments = event.get("args") or {}
        dimensions, types = arguments.get("Input Dims"), arguments.get("Input type")
        yield (kind, group), Exchange(event, _bytes(dimensions, types))


def _kind_on_host(event: Event) -> str | None:
    """Return the kind of exchange of which an event of the host tells, `None` if it tells of none."""
    name = event["name"]
    if event.get("cat") != "user_annotation" or not name.startswith(BACKENDS):
        return None
    kind = name.partition(":")[2]
    return KINDS.get(kind, kind)


def _of_kernel(event: Event, groups: Mapping[str, str]) -> tuple[tuple[str, str], Exchange]:
    """Return the exchange of a kernel of NCCL's."""
    arguments = event.get("args") or {}
    kind = str(arguments.get("Collective name") or _kind_by_name(event["name"]))
    kind = KINDS.get(kind, kind)
    name = str(arguments.get("Process Group Name", ""))
    group = groups.get(name, name)
    peer = {SEND: ("to", "Dst Rank"), RECEIVE: ("from", "Src Rank")}.get(kind)
    if peer is not None and peer[1] in arguments:
        group = f"{peer[0]} rank {arguments[peer[1]]}"
    elements, width = arguments.get("In msg nelems"), TYPE_BYTES.get(str(arguments.get("dtype")))
    return (kind, group), Exchange(event, None if elements is None or width is None else elements * width)


def _kind_by_name(kernel: str) -> str:
    """Return the kind in a kernel's name: `all_reduce` of `ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)`."""
    found = re.match(r"nccl\w*?Kernel_([A-Za-z]+)", kernel)
    words = re.findall(r"[A-Z][a-z]+", found[1]) if found else []
    return "_".join(word.lower() for word in words) or "exchange"


def _group_name(group: Mapping[str, Any], distributed: Mapping[str, Any]) -> str:
    """Return whom a process group has, or its own description where that is not told."""
    ranks = group.get("ranks") or []
    if ranks and len(ranks) == distributed.get("world_size"):
        return ALL_RANKS
    return f"ranks {', '.join(map(str, ranks))}" if ranks else str(group.get("pg_desc", ""))


def _bytes(dimensions: Any, types: Any) -> int | None:
    """Return the bytes of the tensors of which an event tells, `None` where it tells of none."""
    if not dimensions or not types or len(dimensions) != len(types):
        return None
    total = 0
    for shape, name in zip(dimensions, types, strict=True):
        if name not in TYPE_BYTES or not all(isinstance(length, int) for length in shape):
            return None
        total += prod(shape) * TYPE_BYTES[name]
    return total


class _Peers:
    """The other ranks of point-to-point exchanges, which the operations that start them tell."""

    def __init__(self, events: Iterable[Event]) -> None:
        """Look at the operations of a trace."""
        self._starts: dict[Any, list[tuple[float, float, Event]]] = defaultdict(list)
        for event in events:
            if event["name"] in STARTED_BY:
                self._starts[event["tid"], STARTED_BY[event["name"]]].append(
                    (event["ts"], event["ts"] + event["dur"], event)
                )
        for rows in self._starts.values():
            rows.sort(key=lambda row: row[0])

    def of(self, event: Event, kind: str) -> str:
        """Return the other rank of an exchange: that of the operation within which it begins."""
        rows = self._starts.get((event["tid"], kind), [])
        place = bisect_right(rows, event["ts"], key=lambda row: row[0]) - 1
        if place < 0 or event["ts"] > rows[place][1]:
            return ""
        inputs = (rows[place][2].get("args") or {}).get("Concrete Inputs") or []
        peer = inputs[PEER] if len(inputs) > PEER else ""
        return f"{'to' if kind == SEND else 'from'} rank {peer}" if peer else ""
