"""Choose the communication hook that compresses gradients as `strategy.compression` says."""

# No `from __future__ import annotations` here: DDP looks at a hook's annotations and wants classes.

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from src.config import Config
from src.data.random_streams import RandomStream, key
from src.measure.recorder import Recorder
from src.runtime.common.context import RankContext
from src.runtime.torch.compression.options import Compression
from src.runtime.torch.compression.topk import TopK, TopKHook

# Steps before PowerSGD begins, in which gradients are averaged as they are: the fewest that torch allows.
POWERSGD_START = 2
# Keeps a gradient of nothing but zeros, as of a layer that is off, from a division by its norm.
EPSILON = 1e-8
Average = Callable[[dist.GradBucket], torch.futures.Future[torch.Tensor]]


class CompressedAllReduce:
    """An average over all ranks of compressed gradients, which `hook` offers to DDP."""

    def __init__(self, config: Config, make_group: Callable[[Recorder], dist.ProcessGroup]) -> None:
        """Compress as `config.strategy` says.

        Args:
            config: the run's configuration.
            make_group: makes the process group that averages, of the rank's recorder, once ranks have met.
        """
        self._config = config
        self._make_group = make_group
        self._average: Average | None = None

    def hook(self, recorder: Recorder, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Begin to average one bucket; return a future of the averaged gradients.

        Args:
            recorder: the rank's recorder, which counts what is sent.
            bucket: the gradients to average.
        """
        if self._average is None:
            self._average = average_of(self._config, self._make_group(recorder))
        return self._average(bucket)


def without_momentum(context: RankContext) -> RankContext:
    """Return the context in which gradients are averaged: under `topk` momentum is in these already."""
    config = context.config
    if Compression.of(config).compression != "topk":
        return context
    return replace(context, config=replace(config, optimizer={**config.optimizer, "momentum": 0.0}))


def average_of(config: Config, group: dist.ProcessGroup) -> Average:
    """Return the function that averages buckets over `group` by `strategy.compression`."""
    options = Compression.of(config)
    if options.compression == "fp16":
        return lambda bucket: fp16_compress_hook(group, bucket)
    if options.compression == "bf16":
        return lambda bucket: bf16_compress_hook(group, bucket)
    if options.compression == "powersgd":
        # With its residuals ("error feedback") and the last step's factors (Vogels 2019, algorithms 1 and 2).
        state = PowerSGDState(
            process_group=group,
            matrix_approximation_rank=options.compression_rank,
            start_powerSGD_iter=POWERSGD_START,
            orthogonalization_epsilon=EPSILON,
            random_seed=key(RandomStream.COMPRESSION, config.seed),
        )
        return lambda bucket: powerSGD_hook(state, bucket)
    assert options.compression == "topk"
    return TopKHook(group, TopK(options.compression_ratio, config.optimizer["momentum"]))


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
        self, tensors: list[torch.Tensor], options: Any
    ) -> dist.Work:
        """Begin to sum each of `tensors` over all ranks, in place."""
        self._count("all_reduce", tensors)
        assert self._world is not None
        return self._world.allreduce(tensors, options)

    def allgather(  # type: ignore[override]
        self, outputs: list[list[torch.Tensor]], inputs: list[torch.Tensor], options: Any
    ) -> dist.Work:
        """Begin to gather all ranks' `inputs` in `outputs`, for each input a list by rank."""
        self._count("all_gather", inputs)
        assert self._world is not None
        return self._world.allgather(outputs, inputs, options)

    def _count(self, kind: str, tensors: list[torch.Tensor]) -> None:
        for tensor in tensors:
            self._recorder.hand_over(kind, tensor.nbytes)
