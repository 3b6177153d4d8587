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
from src.runtime.torch.tensor.fit import fit_parts


def train(context: RankContext, recorder: Recorder) -> None:
    """Train this rank's parts of the model on every batch.

    Raises:
        ConfigError: where there is no plan of the model, or the split model computes something else.
    """
    fit_parts(context, recorder)
