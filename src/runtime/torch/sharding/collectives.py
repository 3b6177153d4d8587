"""Gather parameters and scatter gradients for `fully_shard`, and count what is exchanged."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, SupportsFloat

import torch
import torch.distributed as dist
from torch import Tensor

from src.compat.live_tensors import exchanged, uncounted
from src.compat.torch import AllGather, ReduceScatter
from src.measure.recorder import Recorder

AXIS = "shard"


class _Counted:
    """A collective call whose bytes are counted, and whose time is on CPUs, where it is waited for."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """Return a tensor of `size` elements for the call."""
        tensor = torch.empty(*size, dtype=dtype, device=device)
        exchanged(tensor)
        return tensor

    def count(self, kind: str, given: Tensor) -> AbstractContextManager[None]:
        """Count the bytes that this rank hands over, and the block's time where the host spends it."""
        self._recorder.hand_over(kind, given.nbytes, AXIS)
        if given.device.type != "cpu":
            # The call is queued beside the computation; how long that waits for it can't be told.
            return contextlib.nullcontext()
        return self._recorder.exchanging(kind, group=AXIS, size=given.nbytes)


class CountedAllGather(_Counted, AllGather):
    """An all-gather of a group's parameters."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        """Gather the ranks' shards [elements] into a tensor [ranks * elements]."""
        with self.count("all_gather", input_tensor):
            work: dist.Work | None = dist.all_gather_into_tensor(
                output_tensor, input_tensor, group=group, async_op=async_op
            )
        return work


class CountedReduceScatter(_Counted, ReduceScatter):
    """A reduce-scatter of a group's gradients."""

    _ended: SupportsFloat = 0.0

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Reduce the ranks' gradients [ranks * elements], and leave this rank its shard [elements]."""
        with self.count("reduce_scatter", input_tensor), uncounted():
            work: dist.Work | None = dist.reduce_scatter_tensor(
                output_tensor, input_tensor, op, group, async_op
            )
        if output_tensor.device.type == "cpu":
            self._ended = self._recorder.now()
        return work

    def count_average(self, reduced: Tensor) -> None:
        """Count an average of the rank's gradients [elements] over copies, which follows, and has ended."""
        self._recorder.hand_over("all_reduce", reduced.nbytes, "data")
        if reduced.device.type == "cpu":
            self._recorder.exchanged_since(self._ended)
            self._recorder.trace_exchange("all_reduce", self._ended, group="data", size=reduced.nbytes)
