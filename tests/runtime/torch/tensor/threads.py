"""Ranks as threads of one process, which exchange tensors by a barrier."""

from __future__ import annotations

import copy
import dataclasses
import threading
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from src.runtime.torch.tensor.group import TensorGroup
from src.runtime.torch.tensor.plan import parallelize, resolve

T = TypeVar("T")
LIMIT_SECONDS = 60


class ThreadGroup(TensorGroup):
    """One thread's place among all."""

    def __init__(self, size: int, rank: int, barrier: threading.Barrier, given: list[Tensor]) -> None:
        super().__init__(size, rank)
        self._barrier, self._all = barrier, given
        self.sums, self.alone = 0, False

    def sum(self, tensor: Tensor) -> None:
        if self.alone:
            return
        self.sums += 1
        tensor.copy_(torch.stack(self.gather(tensor)).sum(0))

    def gather(self, tensor: Tensor) -> list[Tensor]:
        if self.alone:
            return [tensor] * self.size
        self._all[self.rank] = tensor.detach().clone()
        self._barrier.wait(LIMIT_SECONDS)
        given = list(self._all)
        self._barrier.wait(LIMIT_SECONDS)
        return given

    def sum_of_parts(self, parts: Tensor) -> Tensor:
        return torch.stack(self.gather(parts)).sum(0)[self.rank]


def on_ranks(size: int, work: Callable[[ThreadGroup], T]) -> list[T]:
    """What `work` returns of each rank."""
    barrier, given = threading.Barrier(size), [torch.empty(0)] * size
    found: dict[int, T] = {}

    def run(rank: int) -> None:
        try:
            found[rank] = work(ThreadGroup(size, rank, barrier, given))
        except BaseException:
            barrier.abort()
            raise

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[rank] for rank in range(size)]


def split_step(
    model: nn.Module, words: dict[str, str], inputs: Tensor, size: int, *, sequence: bool = False
) -> list[tuple[Tensor, dict[str, Tensor], int]]:
    """Each rank's outputs, gradients by name, and number of sums; the loss is a sum of squares."""

    def work(group: ThreadGroup) -> tuple[Tensor, dict[str, Tensor], int]:
        own = copy.deepcopy(model)
        plan = dataclasses.replace(resolve("a test", words, own, size), sequence=sequence)
        parallelize(own, plan, group)
        outputs = own(inputs)
        outputs.square().sum().backward()
        gradients = {name: each.grad for name, each in own.named_parameters() if each.grad is not None}
        return outputs.detach(), gradients, group.sums

    return on_ranks(size, work)
