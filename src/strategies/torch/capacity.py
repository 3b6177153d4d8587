"""Measure what devices give together: each trains a copy of its own, and no gradient is exchanged.

The sum of their rates over that of `single` is the machine's capacity for so many devices: memory bandwidth,
caches and clocks that they share keep it below their number. No strategy can be expected to give more. No
model comes of it: evaluations score the copy of rank 0, which has learned from its part of the data alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch.distributed as dist
from pytorch_lightning.strategies import DDPStrategy

from src.measure.recorder import Recorder
from src.runtime.common.context import RankContext
from src.runtime.torch import setup, vectors
from src.runtime.torch.lightning.data_parallel import buffers_of_rank_0
from src.runtime.torch.lightning.fit import cluster_environment, fit
from src.runtime.torch.lightning.module import TrainingModule
from src.runtime.torch.predicted_memory import CopyMemory


class CopiesStrategy(DDPStrategy):
    """Lightning's DDPStrategy without DistributedDataParallel, whose copies aren't kept equal."""

    memory = CopyMemory()

    def configure_ddp(self) -> None:
        """Leave the model as it is, since gradients aren't exchanged."""


@contextlib.contextmanager
def parameters_of_rank_0(module: TrainingModule) -> Iterator[None]:
    """Have all ranks evaluate rank 0's parameters within the block, and give each its own ones back."""
    parameters = list(module.model.parameters())
    own = vectors.to_vector(parameters)
    shared = own.clone()
    dist.broadcast(shared, src=0)
    vectors.from_vector(shared, parameters)
    try:
        yield
    finally:
        vectors.from_vector(own, parameters)


def train(context: RankContext, recorder: Recorder) -> None:
    """Train this rank's copy of the model on the rank's own batches."""
    strategy = CopiesStrategy(
        parallel_devices=[setup.root_device(context)] * context.world_size,
        cluster_environment=cluster_environment(),
        process_group_backend=setup.process_group_backend(context),
    )

    @contextlib.contextmanager
    def as_rank_0(module: TrainingModule) -> Iterator[None]:
        with parameters_of_rank_0(module), buffers_of_rank_0(module):
            yield

    fit(context, recorder, strategy, evaluating=as_rank_0)
