"""Several ways of distributing at once, on one mesh of ranks: copies of a model in shards, stages or parts.

    data=2 pipeline=2    rank 0 | stage 0 of copy 0        rank 2 | stage 1 of copy 0
                         rank 1 | stage 0 of copy 1        rank 3 | stage 1 of copy 1
    data=2 shard=2       rank 0 | shard 0 of copy 0        rank 2 | shard 0 of copy 1      (HSDP)
                         rank 1 | shard 1 of copy 0        rank 3 | shard 1 of copy 1
    data=2 tensor=2      rank 0 | parts 0 of copy 0        rank 2 | parts 0 of copy 1
                         rank 1 | parts 1 of copy 0        rank 3 | parts 1 of copy 1
    pipeline=2 tensor=2  rank 0 | parts 0 of stage 0       rank 2 | parts 0 of stage 1
                         rank 1 | parts 1 of stage 0       rank 3 | parts 1 of stage 1

The innermost axis, whose ranks are neighbours and so on one host where there are several, is the one that
exchanges most: parts sum activations and shards gather parameters in each layer, copies average gradients
once a step, stages send the activations at their boundary (Narayanan 2021, section 3).
"""

from __future__ import annotations

from src.measure.recorder import Recorder
from src.runtime.common.context import RankContext
from src.runtime.torch import setup
from src.runtime.torch.lightning.data_parallel import HookedDDPStrategy, backend_hook, fit_copies
from src.runtime.torch.lightning.fit import cluster_environment
from src.runtime.torch.pipeline.schedules import torch_schedule
from src.runtime.torch.pipeline.stage_module import train_stages
from src.runtime.torch.sharding.fit import fit_shards
from src.runtime.torch.tensor.fit import fit_parts


def train(context: RankContext, recorder: Recorder) -> None:
    """Train this rank's part of the model on its part of every batch.

    Raises:
        ConfigError: when the model can't be divided as the configuration asks.
    """
    degrees, strategy = context.config.degrees, context.config.strategy
    if degrees.pipeline > 1:
        train_stages(context, recorder, torch_schedule(strategy["schedule"]), overlaps=True)
    elif degrees.tensor > 1:
        fit_parts(context, recorder)
    elif degrees.shard > 1:
        fit_shards(context, recorder)
    else:
        device = setup.root_device(context)
        copies = HookedDDPStrategy(
            recorder,
            backend_hook,
            behind=True,
            parallel_devices=[device] * context.world_size,
            cluster_environment=cluster_environment(),
            process_group_backend=setup.process_group_backend(context),
            bucket_cap_mb=strategy["bucket_mb"],
        )
        fit_copies(context, recorder, copies)
