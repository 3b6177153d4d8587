"""Specify a process of a job before it is started, as torchelastic's `WorkerSpec` does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from src.run.variables import RANK, WORLD_SIZE


@dataclass(frozen=True)
class ProcessSpec:
    """The specification of one process to start.

    Attributes:
        environment: the variables by which the process finds the others. `RANK` is the rank whose records the
            process writes, or in whose hardware trace it appears.
        workers: numbers, from 0, of the workers whose devices the process holds.
        name: the name of the process and of its log, `logs/<name>.log`.
        host: the name of its host, of those that its launcher asked for; empty for this one.
        helper: whether the process trains nothing: it shares a worker's devices, and its CPU seconds are
            counted separately.
        serves: whether the process answers others' requests (`strategy.serve`) and has no end of its own.
        dispensable: whether the job goes on when the process dies, as long as another dispensable one is
            left, and uses the process again once it is restarted.
    """

    environment: Mapping[str, str]
    workers: tuple[int, ...]
    name: str
    host: str = ""
    helper: bool = False
    serves: bool = False
    dispensable: bool = False


def rank_name(rank: int) -> str:
    """Return the name of the process that is a rank."""
    return f"rank-{rank}"


def rank_spec(
    rank: int, world_size: int, workers: tuple[int, ...], further: Mapping[str, str], host: str = ""
) -> ProcessSpec:
    """Specify rank `rank` of `world_size` ranks that all train, with `further` environment variables."""
    environment = {RANK: str(rank), WORLD_SIZE: str(world_size), **further}
    return ProcessSpec(environment, workers, rank_name(rank), host)
