"""Train a model that is sharded over ranks, through Lightning."""

from __future__ import annotations

from src.measure.recorder import Recorder
from src.runtime.common.context import RankContext
from src.runtime.torch import freed_memory, mesh, process_group, setup
from src.runtime.torch.lightning.data_parallel import buffers_of_rank_0
from src.runtime.torch.lightning.fit import cluster_environment, fit_module
from src.runtime.torch.lightning.parts_strategy import PartsStrategy
from src.runtime.torch.sharding import sharded_module


def fit_shards(context: RankContext, recorder: Recorder) -> None:
    """Shard the seeded model over all ranks, or over those of each copy, and train it.

    Raises:
        ConfigError: when the model can't be sharded as the configuration asks.
    """
    device = setup.root_device(context)
    process_group.join(context, setup.process_group_backend(context))
    setup.prepare_process(context)
    freed_memory.return_blocks()
    module = sharded_module.ShardedModule(context, recorder, mesh.make(context, device), device)
    strategy = PartsStrategy(
        parallel_devices=[device] * context.world_size, cluster_environment=cluster_environment()
    )
    fit_module(context, recorder, strategy, module, buffers_of_rank_0)
