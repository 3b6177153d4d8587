"""A mesh of ranks with a fault in one layer, which an audit is to find."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from src.measure.recorder import Recorder
from src.runtime.common.context import RankContext
from src.runtime.torch import copies
from src.runtime.torch.sharding import model_shards
from src.runtime.torch.sharding.collectives import CountedReduceScatter
from src.runtime.torch.sharding.gradients import ShardedGradients
from src.runtime.torch.tensor import proof
from src.runtime.torch.tensor.group import TensorGroup
from src.strategies.torch import hybrid

# Values of the last layer, of 24 features and at most as many classes; other layers have more.
FEW = 24 * 25
average, scatter = copies.average, CountedReduceScatter.__call__
shard, split = model_shards.shard, TensorGroup.split


def is_bias(gradient: Tensor) -> bool:
    """Of the first layer."""
    return gradient.shape == (24,)


def average_but_a_bias(gradients: Sequence[Tensor], *arguments: Any) -> None:
    """Each copy keeps its own gradient of the first layer's bias."""
    average([gradient for gradient in gradients if not is_bias(gradient)], *arguments)


def average_a_bias_twice(gradients: Sequence[Tensor], *arguments: Any) -> None:
    """The first layer's bias gets a sum over two copies that is divided by four."""
    average(gradients, *arguments)
    for gradient in filter(is_bias, gradients):
        gradient /= 2


def scatter_own(
    call: CountedReduceScatter,
    output_tensor: Tensor,
    input_tensor: Tensor,
    group: Any,
    *rest: Any,
    **named: Any,
) -> Any:
    """Each rank keeps its own gradients of its shard of the last layer."""
    if input_tensor.numel() > FEW:
        return scatter(call, output_tensor, input_tensor, group, *rest, **named)
    output_tensor.copy_(input_tensor.chunk(group.size())[group.rank()])
    return None


def shard_swapped(model: nn.Module, *arguments: Any, **named: Any) -> list[nn.Parameter]:
    """The second rank has the first shard of the last layer's weight."""
    with torch.no_grad():
        weight = model.get_parameter("last.weight")
        weight.copy_(weight.roll(len(weight) // 2, 0))
    return shard(model, *arguments, **named)


def split_swapped(group: TensorGroup, parameter: nn.Parameter, dim: int) -> nn.Parameter:
    """The second rank has the first inputs of the last layer."""
    return split(group, parameter if dim == 0 else nn.Parameter(parameter.roll(12, 1)), dim)


def enter_unsummed(_: TensorGroup, activation: Tensor) -> Tensor:
    """The gradient that split layers pass to the layer before them is each rank's part of it."""
    return activation


def own_norm(_: ShardedGradients, squares: Tensor) -> Tensor:
    """Each rank clips by the norm of its shards."""
    return squares


FAULTS: dict[str, tuple[Any, str, Callable[..., Any]] | None] = {
    "none": None,
    "kept_bias": (copies, "average", average_but_a_bias),
    "twice": (copies, "average", average_a_bias_twice),
    "own_gradients": (CountedReduceScatter, "__call__", scatter_own),
    "swapped_shard": (model_shards, "shard", shard_swapped),
    "own_norm": (ShardedGradients, "sum_over_shards", own_norm),
    "swapped_part": (TensorGroup, "split", split_swapped),
    "unsummed": (TensorGroup, "enter", enter_unsummed),
}


def train(context: RankContext, recorder: Recorder) -> None:
    if (fault := FAULTS[context.config.strategy["fault"]]) is not None:
        setattr(*fault)
        # A plan that is proven lets no fault pass.
        proof.prove = lambda *_: None
    hybrid.train(context, recorder)
