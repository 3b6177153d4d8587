"""Local SGD: each rank trains a copy on its own shards, and parameters are averaged every few steps.

Zinkevich (2010) averages once, at the end; Stich (2019) every H steps, here `sync_every`; and once more
before each evaluation, so that it is one model that is evaluated. With H = 1 and SGD, momentum or not, that
is data parallelism: a mean of steps from one place is the step by the mean. The optimizer's state stays a
rank's own.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from pytorch_lightning.strategies import DDPStrategy
from torch import Tensor, nn

from src.measure.recorder import Recorder
from src.runtime.torch import data_parallel
from src.runtime.torch import training as runtime
from src.runtime.torch.module import Training
from src.runtime.torch.shared_all_reduce import SUPPORTED, SharedAllReduce
from src.worker import Run


class LocalSGDStrategy(DDPStrategy):
    """Processes and devices as Lightning's DDPStrategy has them, without its wrapper around the model."""

    def __init__(self, average: Average, every: int, **options: Any) -> None:
        super().__init__(**options)
        self._average = average
        self._every = every
        self._steps = 0

    def configure_ddp(self) -> None:
        """Gradients are nobody else's: there is nothing to wrap."""

    def optimizer_step(self, *given: Any, **named: Any) -> Any:
        """A rank's own step, and the average when it is time for it."""
        found = super().optimizer_step(*given, **named)
        self._steps += 1
        if self._steps % self._every == 0:
            assert self.lightning_module is not None
            self._average.in_training(self.lightning_module.model)
        return found


class Average:
    """Replaces a model's parameters by their mean over ranks; all ranks call it at the same steps."""

    def __init__(self, recorder: Recorder, device: torch.device) -> None:
        self.recorder = recorder
        self._device = device
        self._shared = SharedAllReduce() if device.type == "cpu" and SUPPORTED else None

    def in_training(self, model: nn.Module) -> None:
        """The same, with the rank's waiting and the bytes that it hands over recorded."""
        if self._device.type == "cuda":
            # It has only been told of its work until now.
            torch.cuda.synchronize()
        with self.recorder.exchanging():
            self.recorder.payload_bytes += self(model)

    @torch.no_grad()
    def __call__(self, model: nn.Module) -> int:
        """How many bytes a rank handed over."""
        parameters = list(model.parameters())
        flat = torch.cat([parameter.reshape(-1) for parameter in parameters])
        self._mean(flat)
        parts = flat.split([parameter.numel() for parameter in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.copy_(part.view(parameter.shape))
        return flat.nbytes

    def _mean(self, flat: Tensor) -> None:
        if self._shared is not None:
            self._shared.average(flat)
        else:
            dist.all_reduce(flat.div_(dist.get_world_size()))


def train(run: Run, recorder: Recorder) -> None:
    """Trains this rank's copy on its shard of every batch."""
    device = runtime.root_device(run)
    nccl = device.type == "cuda" and not run.config.hardware["share_devices"]
    average = Average(recorder, device)
    strategy = LocalSGDStrategy(
        average,
        run.config.strategy["sync_every"],
        parallel_devices=[device] * run.world_size,
        cluster_environment=runtime.environment(),
        process_group_backend="nccl" if nccl else "gloo",
    )

    def bring_together(module: Training) -> None:
        average(module.model)
        data_parallel.share_buffers(module)

    runtime.fit(run, recorder, strategy, before_evaluation=bring_together)
