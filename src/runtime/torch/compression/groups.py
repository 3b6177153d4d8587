"""Give torch's communication hooks a process group of all ranks that counts what is handed to it."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor

from src.measure.recorder import Recorder


class CountedGroup(dist.ProcessGroup):
    """All ranks, through the backend of the world's process group; what is sent is a rank's payload."""

    def __init__(self, recorder: Recorder) -> None:
        """Count into `recorder`. The world's process group must have been formed."""
        self._world = dist.group.WORLD
        assert self._world is not None
        # torch's stubs know only its own classes' arguments.
        super().__init__(self._world.rank(), self._world.size())  # type: ignore[call-arg]
        self._recorder = recorder

    def allreduce(  # type: ignore[override]
        self, tensors: list[Tensor], options: Any
    ) -> dist.Work:
        """Begin to sum each of `tensors` over all ranks, in place."""
        self._count(tensors)
        assert self._world is not None
        return self._world.allreduce(tensors, options)

    def allgather(  # type: ignore[override]
        self, outputs: list[list[Tensor]], inputs: list[Tensor], options: Any
    ) -> dist.Work:
        """Begin to gather all ranks' `inputs` in `outputs`, for each input a list by rank."""
        self._count(inputs)
        assert self._world is not None
        return self._world.allgather(outputs, inputs, options)

    def _count(self, tensors: list[Tensor]) -> None:
        self._recorder.payload_bytes += sum(tensor.nbytes for tensor in tensors)
