"""A model's parameters in memory that processes of one host share, changed by all of them without a lock.

Hogwild (Recht 2011, algorithm 1): a processor reads the parameters as they happen to be, computes a gradient,
and subtracts it element by element. Nothing is locked: a read may have parts of another's update, and where
two write one element at once, one of the writes may be lost.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from src.config import Config


class SharedValues:
    """Parameters and momentum [elements], and how many updates a worker has made. A coordinator's `Store`."""

    def __init__(self, config: Config, elements: int) -> None:
        # Without a name it is freed with the last process that has it, however that ends.
        self._file = os.memfd_create("scaleguide")
        dtype = torch.get_default_dtype()
        os.truncate(self._file, 2 * elements * dtype.itemsize + 8 * config.workers)
        self.welcome: Mapping[str, Any] = {
            "path": f"/proc/{os.getpid()}/fd/{self._file}",
            "elements": elements,
            "dtype": str(dtype).removeprefix("torch."),
        }
        self._map(self.welcome, config)

    @classmethod
    def attach(cls, told: Mapping[str, Any], config: Config) -> SharedValues:
        """The one whose `welcome` was told."""
        made = cls.__new__(cls)
        made._map(told, config)
        return made

    def _map(self, told: Mapping[str, Any], config: Config) -> None:
        elements = told["elements"]
        flat = np.memmap(told["path"], told["dtype"], "r+", shape=2 * elements)
        whole = torch.from_numpy(flat)
        self.values, self._momentum = whole[:elements], whole[elements:]
        # A worker writes its own alone: none is lost.
        self._updates = np.memmap(told["path"], "int64", "r+", offset=flat.nbytes, shape=config.workers)
        self._rate, self._decay = config.optimizer["lr"], config.optimizer["momentum"]

    def version(self) -> int:
        """How many updates there have been."""
        return int(self._updates.sum())

    @torch.no_grad()
    def update(self, gradient: Tensor, rank: int) -> int:
        """Plain SGD, or with momentum, in place, by a gradient [elements]; the version afterwards."""
        step = self._momentum.mul_(self._decay).add_(gradient) if self._decay else gradient
        self.values.sub_(step, alpha=self._rate)
        self._updates[rank] += 1
        return self.version()

    def begin(self, values: Tensor, entries: Mapping[str, Tensor]) -> None:
        """Takes the first values, and the momentum of a run that is resumed."""
        self.values.copy_(values)
        if "momentum_buffer" in entries:
            self._momentum.copy_(entries["momentum_buffer"])

    def taken(self) -> list[tuple[int, int]]:
        """Nothing: workers know it themselves."""
        return []

    def rest(self, ranks: Sequence[int]) -> None:
        """Nobody ever waits."""

    def drain(self) -> None:
        """There is nothing pending."""

    def state(self) -> tuple[Tensor, dict[str, Tensor], Mapping[str, Any]]:
        """Values and momentum, while nobody writes."""
        entries = {"momentum_buffer": self._momentum.clone()} if self._decay else {}
        return self.values.clone(), entries, {}

    def end(self) -> None:
        """The memory goes with the processes."""
