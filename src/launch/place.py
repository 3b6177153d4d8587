"""What a launcher says about each process of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# A file in ranks/<rank>/ that a worker who waits for requests leaves once it takes part: from then on those
# who wait for it hear of its end.
CAME = "came"


@dataclass(frozen=True)
class Place:
    """A process to start, with the environment variables by which it finds the others.

    `RANK` there says whose records it writes, or of which worker its trace tells.
    """

    environment: Mapping[str, str]
    # Workers, numbered from 0, whose devices it holds.
    workers: tuple[int, ...]
    # Of its log: logs/<name>.log.
    name: str
    # It trains nothing: its devices are also a worker's, and its CPU seconds are counted apart.
    helper: bool = False
    # It waits for others' requests (`strategy.serve`) and has no end of its own.
    serves: bool = False
    # The job goes on without it as long as one such process is left, and takes it back.
    dispensable: bool = False


def of_rank(number: int, world: int, workers: tuple[int, ...], environment: Mapping[str, str]) -> Place:
    """A rank among `world`, all of which train."""
    told = {"RANK": str(number), "WORLD_SIZE": str(world), **environment}
    return Place(told, workers, f"rank-{number}")
