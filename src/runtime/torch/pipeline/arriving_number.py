"""Receive a number from another rank while this one goes on."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor


class ArrivingNumber:
    """A number that another rank sends, converted by `float`, which waits for its arrival."""

    def __init__(self, value: Tensor, source: int) -> None:
        """Begin to broadcast `value` [] from rank `source`; all ranks do so at the same step."""
        self._value = value
        self._work = dist.broadcast(value, source, async_op=True)

    def __float__(self) -> float:
        if self._work is not None:
            self._work.wait()
            self._work = None
        return float(self._value)
