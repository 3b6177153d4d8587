"""Examine what workers tell a coordinator, before it takes memory or counts on it.

Each function raises `WrongMessage` for something that no worker sends.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from src.runtime.common.messages import Head, WrongMessage, is_count, is_number
from src.runtime.torch import scoring

TIMES = {"began", "fetched", "computed", "pushed"}
# Figures of a step, as `CompletedStep` has them, and those of a portion of a batch.
OF_STEP = {"loss", "sums", *TIMES}
OF_PORTION = {"loss", "sums", "seconds"}


def examine_registration(head: Head, workers: int) -> None:
    """Examine what a connection of one of so many workers begins with."""
    rank = head.figures.get("rank", -1)
    if head.kind != "register" or head.figures.keys() != {"rank"} or head.arrays:
        raise WrongMessage(f"a request {head.kind[:40]!r} where a worker registers")
    if not is_count(rank) or rank >= workers:
        raise WrongMessage("a worker that isn't there")


def examine(kind: str, head: Head, buffers: Sequence[np.ndarray], sums: int) -> None:
    """Examine the answer to a work item of `kind`; `buffers` are like the worker's, and a task has `sums`."""
    arrays: tuple[tuple[str, tuple[int, ...]], ...] = ()
    if kind == "buffers":
        arrays = tuple((buffer.dtype.name, buffer.shape) for buffer in buffers)
    elif kind == "score":
        arrays = (("float64", (scoring.FIRST + sums,)),)
    figures = {"train": OF_STEP, "peak": head.figures.keys()}.get(kind, ())
    examine_parts(kind, head, arrays, figures, sums)


def examine_parts(
    kind: str,
    head: Head,
    arrays: Sequence[tuple[str, tuple[int, ...]]],
    figures: Collection[str],
    sums: int,
) -> None:
    """Examine an answer that must have these arrays and figures.

    The figures of a step are numbers; its staleness, which not every worker knows, a whole one or null, and
    its `sums` a list of so many numbers.
    """
    if head.kind != "done" or head.arrays != tuple(arrays):
        raise WrongMessage(f"no answer to {kind}: arrays of {[shape for _, shape in head.arrays][:3]}")
    given = dict(head.figures)
    staleness = given.pop("staleness", None) if kind == "train" else None
    if given.keys() != set(figures) or not (staleness is None or isinstance(staleness, int)):
        raise WrongMessage(f"no answer to {kind}: other figures")
    if kind != "train":
        return
    listed = given.pop("sums")
    if not isinstance(listed, list) or len(listed) != sums:
        raise WrongMessage("a step with other sums")
    if not all(is_number(value) for value in (*given.values(), *listed)):
        raise WrongMessage("a step with figures that are no numbers")
