"""Train a model whose layers are split among ranks, through Lightning."""

from __future__ import annotations

import functools

from src.measure.recorder import Recorder
from src.runtime.common.context import RankContext
from src.runtime.torch import mesh, process_group, setup
from src.runtime.torch.lightning.data_parallel import buffers_of_first
from src.runtime.torch.lightning.fit import cluster_environment, fit_module
from src.runtime.torch.lightning.parts_strategy import PartsStrategy
from src.runtime.torch.tensor import tensor_module


def fit_parts(context: RankContext, recorder: Recorder) -> None:
    """Split the layers of the seeded model among all ranks, or among those of each copy, and train it.

    Raises:
        ConfigError: where there is no plan of the model, or the split model computes something else.
    """
    device = setup.root_device(context)
    process_group.join(context, setup.process_group_backend(context))
    setup.prepare_process(context)
    ranks = mesh.make(context, device)
    module = tensor_module.TensorModule(context, recorder, ranks, device)
    strategy = PartsStrategy(
        parallel_devices=[device] * context.world_size, cluster_environment=cluster_environment()
    )
    evaluating = functools.partial(buffers_of_first, axes=[mesh.axis(ranks, "data")])
    fit_module(context, recorder, strategy, module, evaluating)
