"""Define the typed configuration of one run, and read it from the run's `config.yaml`.

This module imports neither Hydra nor a framework, so that a rank can read its configuration without Hydra.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from src.config.degrees import Degrees
from src.config.hardware import Hardware
from src.config.supports import Supports

CONF = Path(__file__).parents[2] / "conf"
# The task of a dataset that names none.
DEFAULT_TASK = "classification"


@dataclass(frozen=True)
class Config:
    """The resolved configuration of one run, as its `config.yaml` holds it.

    Each of the groups `strategy`, `model`, `dataset` and `task` is the mapping of the chosen file in `conf/`;
    `hardware` may be given as that, too.
    """

    strategy: Mapping[str, Any]
    model: Mapping[str, Any]
    dataset: Mapping[str, Any]
    hardware: Hardware
    task: Mapping[str, Any]
    workers: int
    scaling: str
    batch: int
    batch_shares: str | Sequence[int]
    microbatches: int
    epochs: int
    max_minutes: float
    seed: int
    precision: str
    batchnorm: str
    optimizer: Mapping[str, Any]
    evaluate_every: int | None
    target_accuracy: float | None
    out: str
    overwrite: bool
    tracking: Mapping[str, Any]
    checkpoint_every: int | None = None
    checkpoint_keep: int = 1
    resume: str | None = None
    profiler: bool = False

    def __post_init__(self) -> None:
        """Make the hardware of its mapping."""
        if not isinstance(self.hardware, Hardware):
            object.__setattr__(self, "hardware", Hardware(**self.hardware))

    @property
    def framework(self) -> str:
        """Return the strategy's framework, `torch` or `tensorflow`."""
        return self.strategy["framework"]

    @cached_property
    def supports(self) -> Supports:
        """Return what the strategy can do."""
        return Supports.of(self.strategy)

    @cached_property
    def degrees(self) -> Degrees:
        """Return into how many parts the training is divided along each axis; today's strategies fill one."""
        if self.supports.shares_batch:
            return Degrees(data=self.workers)
        return Degrees(pipeline=self.workers)

    @property
    def across_hosts(self) -> bool:
        """Return whether the run's processes are on several hosts, which share no memory."""
        return self.hardware.links is not None or self.on_cluster

    @property
    def on_cluster(self) -> bool:
        """Return whether the run's processes are on hosts of a cluster, which share no files either."""
        return self.hardware.engine is not None

    @property
    def synchronous(self) -> bool:
        """Return whether all workers complete each step together, as one update of one model.

        The loss of a synchronous step is the mean over the global batch, and equals that of one device.
        """
        return self.strategy["synchronous"]

    @property
    def reference(self) -> bool:
        """Return whether the strategy is its framework's plain training, with which others are compared."""
        return self.strategy.get("reference") is not None

    @property
    def data_parallel_degree(self) -> int:
        """Return how many workers divide each global batch among them; 1 where each worker sees all."""
        return self.degrees.batch

    @property
    def global_batch(self) -> int:
        """Return the number of samples in an optimizer step of the whole job."""
        return self.batch * self.workers if self.scaling == "weak" else self.batch

    @property
    def worker_batch(self) -> int:
        """Return the number of samples in an optimizer step of one worker, where all have equal shares."""
        return self.global_batch // self.data_parallel_degree

    @property
    def microbatch(self) -> int:
        """Return the number of samples in a forward pass of one worker, where all have equal shares."""
        return self.worker_batch // self.microbatches

    @property
    def warmup_steps(self) -> int:
        """Return how many first steps are left out of every timed figure.

        Steps that a strategy executes and times as one group are left out as one.
        """
        group = self.strategy.get("steps_per_execution", 1)
        return math.ceil(self.hardware.warmup_steps / group) * group

    @property
    def evaluation_batch(self) -> int:
        """Return the number of test samples in a forward pass.

        The number is large enough to be quick, and small enough to need no more memory than a step does.
        """
        return min(500, max(100, self.batch))


def load(path: Path) -> Config:
    """Read the configuration of a run from the path of its `config.yaml`."""
    return Config(**yaml.safe_load(path.read_text()))
