"""Refuse a model with a trained weight in whose memory another tensor is, where that wouldn't stay so.

An optimizer that writes into the weight changes the other tensor, too: a buffer that is a row of it, or
a second parameter. Strategies that give weights other memory, or their updates to another rank, would
silently train another model. A weight that layers share as one parameter is none of that.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from src.config import Config, ConfigError, choices


def check_memory(config: Config, model: nn.Module) -> None:
    """Check that the strategy of a run trains `model` as it is, whatever shares memory in it.

    Raises:
        ConfigError: where it doesn't, with the names of two tensors that do.
    """
    # A LightningModule's own step gets the module as its author has it, and so does any other there.
    if config.supports.training_step or (pair := overlapping(model)) is None:
        return
    keeping = [
        name
        for name, file in choices.strategies().items()
        if file["supports"].get("training_step") and not file.get("capacity")
    ]
    raise ConfigError(
        f"model={config.model['name']}: {pair[1]} is in the memory of {pair[0]}, which is trained, and "
        f"strategy={config.strategy['name']} would take them apart; use {pair[0]} itself in forward, or "
        f"choose {', '.join(keeping)}"
    )


def overlapping(model: nn.Module) -> tuple[str, str] | None:
    """Return the names of a trained parameter and of another tensor in its memory; `None` without two."""
    named = itertools.chain(model.named_parameters(), model.named_buffers())
    spans = sorted(
        (*_span(tensor), not tensor.requires_grad, name)
        for name, tensor in named
        if not is_lazy(tensor) and tensor.layout is torch.strided and tensor.numel() and not tensor.is_meta
    )
    reaching: tuple[int, bool, str] = (0, True, "")
    for start, end, fixed, name in spans:
        if start < reaching[0] and not (fixed and reaching[1]):
            return (reaching[2], name) if fixed or not reaching[1] else (name, reaching[2])
        reaching = max(reaching, (end, fixed, name), key=lambda each: each[0])
    return None


def _span(tensor: Tensor) -> tuple[int, int]:
    """Return the addresses of a tensor's first byte, and of the one after its last."""
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (1 + steps) * tensor.element_size()
