"""Keep a model's parameters in memory that processes of one host share, and change them without a lock.

Hogwild (Recht 2011, algorithm 1): a processor reads the parameters as they happen to be, computes a gradient,
and subtracts it element by element. Nothing is locked: a read may see parts of another processor's update,
and where two processors write one element at once, one of the writes may be lost.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from src.config import Config
from src.measure.rank_record import RankRecord


class SharedMemoryStore:
    """A `ParameterStore` in shared memory: parameters, momentum, and the number of each worker's updates.

    Attributes:
        welcome: where other processes find the memory, and the vector's length and type.
        values: the parameters [elements].
    """

    def __init__(self, welcome: Mapping[str, Any], config: Config) -> None:
        """Map the memory of the store whose `welcome` is passed, in any process of its host."""
        self.welcome = welcome
        elements = welcome["elements"]
        flat = np.memmap(welcome["path"], welcome["dtype"], "r+", shape=2 * elements)
        whole = torch.from_numpy(flat)
        self.values, self._momentum = whole[:elements], whole[elements:]
        # Each worker writes its own counter alone, so that no update goes uncounted.
        self._updates = np.memmap(welcome["path"], "int64", "r+", offset=flat.nbytes, shape=config.workers)
        self._decay = config.optimizer["momentum"]

    @classmethod
    def create(cls, config: Config, elements: int) -> SharedMemoryStore:
        """Make shared memory for `elements` parameters; it lasts while a process has it open or mapped."""
        # Memory without a name is freed with the last process that has it, however that ends. The descriptor
        # stays open, for workers that come later.
        file = os.memfd_create("scaleguide")
        dtype = torch.get_default_dtype()
        os.truncate(file, 2 * elements * dtype.itemsize + 8 * config.workers)
        welcome = {
            "path": f"/proc/{os.getpid()}/fd/{file}",
            "elements": elements,
            "dtype": str(dtype).removeprefix("torch."),
        }
        return cls(welcome, config)

    def version(self) -> int:
        """Return the number of all workers' updates so far."""
        return int(self._updates.sum())

    @torch.no_grad()
    def update(self, gradient: Tensor, rank: int, rate: float) -> int:
        """Take a step of SGD, with momentum if configured, in place; return the version after the step.

        Args:
            gradient: [elements].
            rank: the worker that takes the step.
            rate: the learning rate.
        """
        step = self._momentum.mul_(self._decay).add_(gradient) if self._decay else gradient
        self.values.sub_(step, alpha=rate)
        self._updates[rank] += 1
        return self.version()

    def initialize(self, values: Tensor, entries: Mapping[str, Tensor]) -> None:
        """Set the initial values [elements], and the momentum if the run is resumed."""
        self.values.copy_(values)
        if "momentum_buffer" in entries:
            self._momentum.copy_(entries["momentum_buffer"])

    def applied(self) -> list[tuple[int, int]]:
        """Return no steps: workers report the staleness of their steps themselves."""
        return []

    def rest(self, ranks: Sequence[int]) -> None:
        """Do nothing, since workers never wait for each other."""

    def drain(self) -> None:
        """Do nothing, since every update takes effect at once."""

    def state(self) -> tuple[Tensor, dict[str, Tensor], RankRecord]:
        """Return the values and the momentum; called while no worker writes."""
        entries = {"momentum_buffer": self._momentum.clone()} if self._decay else {}
        return self.values.clone(), entries, {}

    def close(self) -> None:
        """Do nothing, since the memory is freed when the processes end."""
