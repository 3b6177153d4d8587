"""Fully sharded data parallelism (`fully_shard`, FSDP2): each rank holds a shard of every parameter.

    rank 0 | gather 1, forward 1 | gather 2, forward 2 | ... | gather 2, backward 2, scatter 2 | ...
    rank 1 | gather 1, forward 1 | gather 2, forward 2 | ... | gather 2, backward 2, scatter 2 | ...

The parameters of a group of layers are gathered before its forward pass and freed after it; its gradients
are averaged, and each rank keeps those of its shard, and the optimizer's state of that (ZeRO-3, Rajbhandari
2020). With `strategy.reshard=false` parameters stay from the forward pass to the backward pass (ZeRO-2).
"""

from __future__ import annotations

from src.measure.recorder import Recorder
from src.runtime.common.context import RankContext
from src.runtime.torch.sharding.fit import fit_shards


def train(context: RankContext, recorder: Recorder) -> None:
    """Train this rank's shards of the model on the rank's part of every batch.

    Raises:
        ConfigError: when the model can't be sharded as the configuration asks.
    """
    fit_shards(context, recorder)
