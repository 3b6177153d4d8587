"""Train a model that is sharded over ranks, through Lightning."""

from __future__ import annotations

from torch import nn

from src.measure.recorder import Recorder
from src.runtime.common.context import RankContext
from src.runtime.torch import mesh, process_group, setup
from src.runtime.torch.lightning.data_parallel import buffers_of_rank_0
from src.runtime.torch.lightning.fit import cluster_environment, fit_module
from src.runtime.torch.lightning.parts_strategy import PartsStrategy
from src.runtime.torch.sharding import sharded_module

# Bytes from which on blocks may be returned; glibc's own bound is 32 MiB.
LEAST_RETURNED, MOST_KEPT = 2**22, 2**25
PAGE = 4096


def fit_shards(context: RankContext, recorder: Recorder) -> None:
    """Shard the seeded model over all ranks, or over those of each copy, and train it.

    Raises:
        ConfigError: when the model can't be sharded as the configuration asks.
    """
    device = setup.root_device(context)
    process_group.join(context, setup.process_group_backend(context))
    setup.prepare_process(context)
    setup.return_freed_memory()
    module = sharded_module.ShardedModule(context, recorder, mesh.make(context, device), device)
    setup.return_freed_memory(_kept_bytes(module.model))
    strategy = PartsStrategy(
        parallel_devices=[device] * context.world_size, cluster_environment=cluster_environment()
    )
    fit_module(context, recorder, strategy, module, buffers_of_rank_0)


def _kept_bytes(model: nn.Module) -> int:
    """Return the bytes from which on freed blocks are returned: those of the largest parameter, in bounds.

    Blocks of a parameter or an activation are needed at each step. Those of a gathered group would leave
    holes between activations, which came to more than half of a transformer's state.
    """
    largest = max(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    return min(max(LEAST_RETURNED, largest + PAGE), MOST_KEPT)
