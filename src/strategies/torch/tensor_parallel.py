"""Tensor parallelism: each rank has a part of every split layer, and all see the same samples.

    rank 0 | forward a0, b0 | sum | ... | backward b0, a0 | sum | ...
    rank 1 | forward a1, b1 | sum | ... | backward b1, a1 | sum | ...

Of two layers the first is split by the features it returns, the second by those it takes (attention: by
heads), so that the ranks sum activations once in the forward pass and once in the backward pass (Shoeybi
2019, section 3).
"""

from __future__ import annotations

from src.measure.recorder import Recorder
from src.runtime.common.context import RankContext
from src.runtime.torch import mesh, process_group, setup
from src.runtime.torch.lightning.fit import cluster_environment, fit_module
from src.runtime.torch.lightning.parts_strategy import PartsStrategy
from src.runtime.torch.tensor.tensor_module import TensorModule


def train(context: RankContext, recorder: Recorder) -> None:
    """Train this rank's parts of the model on every batch.

    Raises:
        ConfigError: where there is no plan of the model, or the split model computes something else.
    """
    device = setup.root_device(context)
    process_group.join(context, setup.process_group_backend(context))
    setup.prepare_process(context)
    module = TensorModule(context, recorder, mesh.make(context, device)["tensor"], device)
    strategy = PartsStrategy(
        parallel_devices=[device] * context.world_size, cluster_environment=cluster_environment()
    )
    fit_module(context, recorder, strategy, module)
