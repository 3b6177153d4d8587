"""Local SGD: each rank trains a copy on its own parts of batches; parameters are averaged every few steps.

Zinkevich (2010) averages once, at the end, and Stich (2019) every H steps, which are `sync_every` here.
Each evaluation scores the average of the parameters, so that one model is evaluated, and gives each rank its
own ones back: how often a run evaluates doesn't change what it trains. With H = 1 and SGD, with
or without momentum, local SGD is data parallelism: the mean of steps from the same parameters is the step by
the mean gradient. The optimizer's state is never averaged. An outer optimizer may take the mean for a
direction instead (`strategy.outer`, `src/runtime/torch/outer_optimizer.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from pytorch_lightning.strategies import DDPStrategy
from torch import Tensor, nn

from src.compat.live_tensors import exchanged
from src.measure.recorder import Recorder
from src.runtime.common.context import RankContext
from src.runtime.torch import setup, vectors
from src.runtime.torch.lightning.data_parallel import buffers_of_rank_0
from src.runtime.torch.lightning.fit import cluster_environment, fit
from src.runtime.torch.lightning.module import TrainingModule, trained_model
from src.runtime.torch.outer_optimizer import OuterOptimizer
from src.runtime.torch.predicted_memory import CopyMemory
from src.runtime.torch.shared_all_reduce import SHARED_MEMORY, SUPPORTED, SharedAllReduce


class Average:
    """The mean of a model's parameters over the ranks, which call its methods at the same steps."""

    def __init__(self, context: RankContext, recorder: Recorder) -> None:
        """Average for the rank of `context`; waits and payload are added to its `recorder`."""
        self.recorder = recorder
        possible = setup.root_device(context).type == "cpu" and SUPPORTED and not context.config.across_hosts
        self._shared = SharedAllReduce(recorder.note) if possible else None
        self._trained: set[int] = set()

    def trained(self, model: nn.Module) -> list[nn.Parameter]:
        """Return the parameters that get gradients, or have got some: an author may freeze them later.

        A mean of equal ones, as those are which nobody trains, may differ from them by rounding.
        """
        self._trained |= {id(each) for each in model.parameters() if each.requires_grad}
        return [each for each in model.parameters() if id(each) in self._trained]

    def buffers(self) -> Sequence[Tensor]:
        """Return the tensors in which ranks exchange, if there are any yet."""
        return () if self._shared is None else self._shared.buffers()

    def buffer_bytes(self, world: int) -> int:
        """Return the bytes of `buffers` of so many ranks, once they have averaged."""
        return 0 if self._shared is None else self._shared.ring_bytes(world)

    def in_training(self, model: nn.Module, then: Callable[[Tensor], Tensor]) -> None:
        """Replace the parameters of `model` by what `then` makes of their mean [elements].

        The rank's waiting and payload are recorded.
        """
        parameters = self.trained(model)
        values = vectors.to_vector(parameters)
        exchanged(values)
        kind = None if self._shared is None else self._shared.kind
        with self.recorder.exchanging(kind, group=SHARED_MEMORY, size=values.nbytes):
            mean = self._mean(values)
        self.recorder.hand_over("all_reduce", mean.nbytes)
        vectors.from_vector(then(mean), parameters)

    @contextlib.contextmanager
    def for_evaluation(self, model: nn.Module) -> Iterator[None]:
        """Average the parameters of `model` within the block, and give this rank its own ones back.

        The block is off the clock, and its payload is counted nowhere, as that of all evaluations.
        """
        parameters = self.trained(model)
        own = vectors.to_vector(parameters)
        vectors.from_vector(self._mean(own.clone()), parameters)
        try:
            yield
        finally:
            vectors.from_vector(own, parameters)

    def _mean(self, values: Tensor) -> Tensor:
        """Replace `values` [elements] by their mean over the ranks, and return them."""
        if self._shared is not None:
            self._shared.average(values)
        else:
            dist.all_reduce(values.div_(dist.get_world_size()))
        return values


class LocalSGDStrategy(DDPStrategy):
    """Lightning's DDPStrategy without DistributedDataParallel, with an average of parameters instead."""

    def __init__(self, average: Average, settings: Mapping[str, Any], **options: Any) -> None:
        """Average the parameters by `average` as `settings` say; `options` are those of DDPStrategy."""
        super().__init__(**options)
        self._average = average
        self.exchange_buffers = average.buffers
        self._settings = settings
        self._steps = 0
        self._outer: OuterOptimizer | None = None

    @property
    def memory(self) -> CopyMemory:
        """Return what is held in the step whose tensors are followed, the warm-up's last one."""
        step, every = self._average.recorder.config.warmup_steps, self._settings["sync_every"]
        outer = self._settings["outer"] != "none"
        buffers = self._average.buffer_bytes(self.world_size)
        return CopyMemory(
            # They are mapped by the first average.
            exchange=buffers if step > every else 0,
            mapped=buffers if step == every else 0,
            # Where ranks were, and the outer optimizer's own.
            vectors=2 if outer else 0,
            # What is averaged, and how far it is from where ranks were.
            averaged=0 if step % every else 2 if outer else 1,
        )

    def configure_ddp(self) -> None:
        """Leave the model as it is, since gradients aren't exchanged."""

    def optimizer_step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Take this rank's own optimizer step, and average the parameters every `sync_every` steps."""
        assert self.lightning_module is not None
        model = trained_model(self.lightning_module)
        if not self._steps:
            start = vectors.to_vector(self._average.trained(model))
            self._outer = OuterOptimizer.of(self._settings, start)
        result = super().optimizer_step(optimizer, *args, **kwargs)
        self._steps += 1
        if self._steps % self._settings["sync_every"] == 0:
            rate = optimizer.param_groups[0]["lr"]
            outer = self._outer
            self._average.in_training(model, lambda mean: mean if outer is None else outer.step(mean, rate))
        return result


def train(context: RankContext, recorder: Recorder) -> None:
    """Train this rank's copy of the model on the rank's part of every batch."""
    device = setup.root_device(context)
    average = Average(context, recorder)
    strategy = LocalSGDStrategy(
        average,
        context.config.strategy,
        parallel_devices=[device] * context.world_size,
        cluster_environment=cluster_environment(),
        process_group_backend=setup.process_group_backend(context),
    )

    @contextlib.contextmanager
    def averaged(module: TrainingModule) -> Iterator[None]:
        with average.for_evaluation(module.model), buffers_of_rank_0(module):
            yield

    fit(context, recorder, strategy, evaluating=averaged)
