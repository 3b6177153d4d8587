"""Define what a strategy is, and the context that it gets: one rank's place in its run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Protocol

from src.config import Config
from src.data.arrays import Arrays
from src.measure.recorder import Recorder


@dataclass(frozen=True)
class RankContext:
    """One rank's place in its run.

    Attributes:
        config: the run's resolved configuration.
        rank: this process's number among the ranks, from 0.
        world_size: number of ranks.
        arrays: the dataset, memory-mapped.
        folder: the run's directory.
        cores: the cores that this rank is pinned to.
    """

    config: Config
    rank: int
    world_size: int
    arrays: Arrays
    folder: Path
    cores: tuple[int, ...]


class Strategy(Protocol):
    """A way of distributing a training: the function that a strategy's YAML names as `entry`."""

    def __call__(self, context: RankContext, recorder: Recorder) -> None:
        """Train in this rank, and record every step and evaluation with `recorder`.

        All ranks call this function. A strategy initializes the whole model's weights by the seed, takes
        samples from `src.data.batches`, uses as many threads as the rank has cores, and evaluates
        every test sample once. It ends at `epochs`, or once training has taken `max_minutes`, with all ranks
        at the same step.
        """


class Service(Protocol):
    """A process that answers others' requests: the function that a strategy's YAML names as `serve`."""

    def __call__(self, config: Config, cores: tuple[int, ...], folder: Path) -> NoReturn:
        """Serve, pinned to `cores` and with its records in `folder`, until the parent ends the process."""
