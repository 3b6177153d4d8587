"""Examine what a parameter server is asked for, before it takes memory or changes a parameter.

Each function raises `WrongMessage` for a request that no process of the run makes.
"""

from __future__ import annotations

from typing import Any

from src.runtime.common.messages import Head, WrongMessage, is_count, is_number
from src.runtime.torch.parameter_server import pushes
from src.runtime.torch.parameter_server.parameter_shard import ParameterShard

# Names of the figures of each request that isn't `initialize`.
FIGURES: dict[str, set[str]] = {
    **{kind: set() for kind in ("slowest", "fetch", "drain", "applied", "state", "close")},
    "register": {"rank", "clock"},
    "push": {"version", "items", "step"},
    "norm": {"clock", "squares"},
    "rest": {"ranks"},
}
# Requests that only a registered worker makes.
OF_WORKERS = ("fetch", "push")


def examine_initial(head: Head) -> None:
    """Examine the request that sets the parameters, of which a server knows nothing before."""
    (values, *entries) = head.arrays or [("", ())]
    names = head.figures.get("entries")
    if len(values[1]) != 1 or not values[0].startswith("float"):
        raise WrongMessage("parameters that are no vector")
    if not isinstance(names, list) or len(names) != len(entries):
        raise WrongMessage("entries of an optimizer without their names")
    if any(shape not in ((), values[1]) for _, shape in entries):
        raise WrongMessage("entries of an optimizer that don't fit the parameters")


def examine(head: Head, shard: ParameterShard, worker: int | None, compression: str = "none") -> None:
    """Examine any other request.

    Args:
        head: what the request announces.
        shard: the parameters, by which shapes and ranks are known.
        worker: the worker that has registered by this connection, `None` if none has.
        compression: how workers compress the gradients that they push.
    """
    figures = head.figures
    if head.kind not in FIGURES or figures.keys() != FIGURES[head.kind]:
        raise WrongMessage(f"a request {head.kind[:40]!r} that is none of ours")
    if worker is None and head.kind in OF_WORKERS:
        raise WrongMessage(f"{head.kind} without a worker")
    if worker is not None and head.kind == "register":
        raise WrongMessage("a worker that is registered already")
    if head.kind == "push":
        pushes.examine(compression, head, shard.layout)
    elif head.arrays:
        raise WrongMessage(f"{head.kind} with arrays of {[shape for _, shape in head.arrays][:3]}")
    counts = [figures[name] for name in ("rank", "clock", "version", "step") if name in figures]
    if not all(is_count(value) for value in counts) or not is_number(figures.get("squares", 0)):
        raise WrongMessage(f"{head.kind} with figures that are no numbers")
    ranks = [figures["rank"]] if head.kind == "register" else figures.get("ranks", [])
    if not isinstance(ranks, list) or not all(is_count(rank) and rank < shard.workers for rank in ranks):
        raise WrongMessage(f"{head.kind} of workers that aren't there")
    if figures.get("version", 0) > shard.version or not _are_items(figures.get("items", [])):
        raise WrongMessage(f"{head.kind} of values that nobody fetched")


def _are_items(value: Any) -> bool:
    """Return whether a value is a list of pairs of a work item and a version."""
    return isinstance(value, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(is_count(number) for number in pair)
        for pair in value
    )
