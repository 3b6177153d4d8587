"""Local SGD: each rank trains a copy on its own parts of batches; parameters are averaged every few steps.

Zinkevich (2010) averages once, at the end, and Stich (2019) every H steps, which are `sync_every` here.
Each evaluation scores the average of the parameters, so that one model is evaluated, and gives each rank its
own ones back: how often a run evaluates doesn't change what it trains. With H = 1 and SGD, with
or without momentum, local SGD is data parallelism: the mean of steps from the same parameters is the step by
the mean gradient. The optimizer's state is never averaged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from pytorch_lightning.strategies import DDPStrategy
from torch import Tensor, nn

from src.measure.recorder import Recorder
from src.runtime.common.context import RankContext
from src.runtime.torch import setup
from src.runtime.torch.lightning.data_parallel import buffers_of_rank_0
from src.runtime.torch.lightning.fit import cluster_environment, fit
from src.runtime.torch.lightning.module import TrainingModule
from src.runtime.torch.shared_all_reduce import SUPPORTED, SharedAllReduce


class Average:
    """A callable that replaces a model's parameters by their mean over the ranks.

    All ranks call it at the same steps.
    """

    def __init__(self, context: RankContext, recorder: Recorder) -> None:
        """Average for the rank of `context`; waits and payload are added to its `recorder`."""
        self.recorder = recorder
        possible = setup.root_device(context).type == "cpu" and SUPPORTED and not context.config.across_hosts
        self._shared = SharedAllReduce(recorder.note) if possible else None

    def in_training(self, model: nn.Module) -> None:
        """Average the parameters of `model`, and record the rank's waiting and payload."""
        with self.recorder.exchanging():
            self.recorder.payload_bytes += self(model)

    @contextlib.contextmanager
    def for_evaluation(self, model: nn.Module) -> Iterator[None]:
        """Average the parameters of `model` within the block, and give this rank its own ones back.

        The block is off the clock, and its payload is counted nowhere, as that of all evaluations.
        """
        own = [parameter.detach().clone() for parameter in model.parameters()]
        self(model)
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, value in zip(model.parameters(), own, strict=True):
                    parameter.copy_(value)

    @torch.no_grad()
    def __call__(self, model: nn.Module) -> int:
        """Average the parameters of `model` in place; return this rank's payload in bytes."""
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


class LocalSGDStrategy(DDPStrategy):
    """Lightning's DDPStrategy without DistributedDataParallel, with an average of parameters instead."""

    def __init__(self, average: Average, every: int, **options: Any) -> None:
        """Average the parameters by `average` every `every` steps; `options` are those of DDPStrategy."""
        super().__init__(**options)
        self._average = average
        self._every = every
        self._steps = 0

    def configure_ddp(self) -> None:
        """Leave the model as it is, since gradients aren't exchanged."""

    def optimizer_step(self, *args: Any, **kwargs: Any) -> Any:
        """Take this rank's own optimizer step, and average the parameters every `every` steps."""
        result = super().optimizer_step(*args, **kwargs)
        self._steps += 1
        if self._steps % self._every == 0:
            assert isinstance(self.lightning_module, TrainingModule)
            self._average.in_training(self.lightning_module.model)
        return result


def train(context: RankContext, recorder: Recorder) -> None:
    """Train this rank's copy of the model on the rank's part of every batch."""
    device = setup.root_device(context)
    average = Average(context, recorder)
    strategy = LocalSGDStrategy(
        average,
        context.config.strategy["sync_every"],
        parallel_devices=[device] * context.world_size,
        cluster_environment=cluster_environment(),
        process_group_backend=setup.process_group_backend(context),
    )

    @contextlib.contextmanager
    def averaged(module: TrainingModule) -> Iterator[None]:
        with average.for_evaluation(module.model), buffers_of_rank_0(module):
            yield

    fit(context, recorder, strategy, evaluating=averaged)
