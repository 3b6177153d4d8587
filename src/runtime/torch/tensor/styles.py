"""Split a layer among ranks in one of the ways that a plan names; the words are those of transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

from src.config import ConfigError
from src.runtime.torch.tensor.group import TensorGroup

COLWISE, ROWWISE, JOINED = "colwise", "rowwise", "colwise_gather_output"
VOCABULARY, SUMMED = "embedding_rowwise", "replicated_with_grad_allreduce"


def own_part(parameter: Tensor | None) -> Any:
    """Return this rank's part of a parameter, through which gradients pass."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def _split(module: nn.Module, group: TensorGroup, dim: int, *names: str) -> None:
    for name in names:
        if (parameter := getattr(module, name)) is not None:
            setattr(module, name, group.split(parameter, dim))


def _compute_by(module: nn.Module, forward: Callable[[Any, Tensor], Tensor]) -> None:
    module.forward = MethodType(forward, module)
    # In evaluation torch's encoder layer reads the weights past its layers, unless one of them has a hook.
    module.register_forward_pre_hook(lambda *_: None)


def colwise(module: nn.Linear, group: TensorGroup) -> None:
    """Have a layer compute this rank's part of its output's features, of the whole input."""
    _split(module, group, 0, "weight", "bias")

    def forward(layer: nn.Linear, inputs: Tensor) -> Tensor:
        part = functional.linear(group.enter(inputs), own_part(layer.weight), own_part(layer.bias))
        return group.begin(part)

    _compute_by(module, forward)


def colwise_of(module: nn.Linear) -> None:
    """Have a layer that `colwise` has split take its input as it is."""

    def forward(layer: nn.Linear, inputs: Tensor) -> Tensor:
        return functional.linear(inputs, own_part(layer.weight), own_part(layer.bias))

    _compute_by(module, forward)


def joined(module: nn.Linear, group: TensorGroup) -> None:
    """Have a layer compute this rank's part of its output's features, and gather all of them."""
    length = module.out_features
    _split(module, group, 0, "weight", "bias")

    def forward(layer: nn.Linear, inputs: Tensor) -> Tensor:
        part = functional.linear(group.enter(inputs), own_part(layer.weight), own_part(layer.bias))
        return group.joined(part, length)

    _compute_by(module, forward)


def rowwise(module: nn.Linear, group: TensorGroup) -> None:
    """Have a layer take this rank's part of its input's features, and sum its output over the ranks."""
    _split(module, group, 1, "weight")

    rowwise_to(module, group.total)


def rowwise_to(module: nn.Linear, total: Callable[[Tensor], Tensor]) -> None:
    """Have a layer of which this rank has a part of its input's features sum its output by `total`."""

    def forward(layer: nn.Linear, inputs: Tensor) -> Tensor:
        summed = total(functional.linear(inputs, own_part(layer.weight)))
        # Under autocast the sum is of half precision, and the bias isn't.
        return summed if layer.bias is None else summed + layer.bias.to(summed.dtype)

    _compute_by(module, forward)


def vocabulary(module: nn.Embedding, group: TensorGroup) -> None:
    """Have a layer look up those of its rows that this rank has, and sum over the ranks; others are zeros."""
    own = group.span(module.num_embeddings)
    padding = module.padding_idx
    padding = padding - own.start if padding is not None and own.start <= padding < own.stop else None
    _split(module, group, 0, "weight")

    def forward(layer: nn.Embedding, indices: Tensor) -> Tensor:
        foreign = (indices < own.start) | (indices >= own.stop)
        local = (indices - own.start).masked_fill(foreign, 0)
        rows = functional.embedding(local, own_part(layer.weight), padding)
        return group.total(rows.masked_fill(foreign.unsqueeze(-1), 0))

    _compute_by(module, forward)


def summed(module: nn.Module, group: TensorGroup) -> None:
    """Have a layer whose parameters all ranks use for features of their own sum its gradients."""
    for parameter in module.parameters():
        sum_gradient(parameter, group)


def sum_gradient(parameter: nn.Parameter, group: TensorGroup) -> None:
    """Have the gradient of a parameter that all ranks have summed over them."""

    def total(gradient: Tensor) -> Tensor:
        whole = gradient.clone(memory_format=torch.contiguous_format)
        group.sum(whole)
        return whole

    if parameter.requires_grad:
        parameter.register_hook(total)


# By word: what splits a module, its type, and the sizes of it that must divide by the number of ranks.
STYLES: Mapping[str, tuple[Callable[[Any, TensorGroup], None], type[nn.Module], str | None]] = {
    COLWISE: (colwise, nn.Linear, "out_features"),
    ROWWISE: (rowwise, nn.Linear, "in_features"),
    JOINED: (joined, nn.Linear, None),
    VOCABULARY: (vocabulary, nn.Embedding, None),
    SUMMED: (summed, nn.Module, None),
}


def check(name: str, module: nn.Module, word: str, ranks: int) -> None:
    """Raise `ConfigError` unless a module can be split among so many ranks in the way that a word names."""
    _, kind, size = STYLES[word]
    if kind is not nn.Module and type(module).forward is not kind.forward:
        raise ConfigError(
            f"strategy.plan: {name} is to be {word}, which splits an nn.{kind.__name__}, and is a "
            f"{type(module).__name__}"
        )
    if size is not None and getattr(module, size) % ranks:
        raise ConfigError(
            f"strategy.plan: {name} has {size}={getattr(module, size)}, which workers={ranks} don't divide; "
            f"choose workers={_divisor(getattr(module, size), ranks)}, or leave the layer out of the plan"
        )
    if word in (JOINED, VOCABULARY):
        length = len(module.get_parameter("weight"))
        if -(-length // ranks) * (ranks - 1) >= length:
            raise ConfigError(
                f"strategy.plan: {name} has {length} rows, too few to split among {ranks} ranks"
            )
    if word == VOCABULARY:
        options = [each for each in ("max_norm", "scale_grad_by_freq", "sparse") if getattr(module, each)]
        if options:
            raise ConfigError(f"strategy.plan: {name} has {options[0]}, and can't be split; leave it out")


def _divisor(length: int, most: int) -> int:
    """Return the greatest number below `most` that divides `length`."""
    return next(number for number in range(most - 1, 0, -1) if length % number == 0)
