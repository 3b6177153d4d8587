"""Check that hooks of a model's parameters do on several devices what they do on one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from src.compat.torch import parameter_hooks
from src.config import ConfigError
from src.runtime.common.context import RankContext

# Gradients are so large at times: what clips them does so to some.
SIZES = (1e-4, 1.0, 1e4)


def check_hooks(context: RankContext, model: nn.Module, note: Callable[[str], None]) -> None:
    """Raise `ConfigError` where hooks of parameters are lost, or act on a part of the gradient otherwise.

    `note` is told of those that aren't linear where parts of a batch have gradients of their own, as they
    have under DistributedDataParallel, too.
    """
    config = context.config
    strategy, degrees = config.strategy["name"], config.degrees
    divided, noted = config.data_parallel_degree > 1 or config.microbatches > 1, list[str]()
    for name, parameter in model.named_parameters():
        hooks, later = parameter_hooks(parameter)
        if not hooks and not later:
            continue
        if degrees.shard > 1 or degrees.tensor > 1:
            raise ConfigError(
                f"strategy={strategy}: the model's parameter {name} has a hook, which its parts on several "
                "devices haven't; choose ddp"
            )
        if not divided or _is_linear(_by_hooks(hooks, later), parameter):
            continue
        if config.cuts or "serve" in config.strategy:
            raise ConfigError(
                f"strategy={strategy}: the model's parameter {name} has a hook that isn't linear, and would "
                "take another part of the gradient than on one device; choose ddp or single, or "
                "optimizer.clip_norm"
            )
        noted.append(name)
    if noted:
        several = f" and of {len(noted) - 1} more" if len(noted) > 1 else ""
        note(
            f"note: the hook of {noted[0]}{several} isn't linear: it takes the gradient of each device's "
            "part of a batch, before parts are averaged"
        )


def _is_linear(change: Callable[[Tensor, Tensor], Tensor], parameter: Tensor) -> bool:
    """Return whether what hooks make of a gradient is the same of a sum as of its terms, large or small."""
    generator = torch.Generator().manual_seed(0)
    rounding = 1e-3 if parameter.dtype.itemsize > 2 else 3e-2
    try:
        for size in SIZES:
            drawn = (size * torch.randn(parameter.shape, generator=generator) for _ in range(2))
            one, other = (each.to(parameter) for each in drawn)
            apart, together = (
                change(parameter, one) + change(parameter, other),
                change(parameter, one + other),
            )
            if float((apart - together).norm()) > rounding * float(together.norm()):
                return False
    except Exception:
        # It looks at what there is in training alone.
        return False
    return True


def _by_hooks(hooks: Sequence[Any], later: Sequence[Any]) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function that returns what a parameter's hooks make of a gradient."""

    def change(parameter: Tensor, gradient: Tensor) -> Tensor:
        given = gradient.clone()
        for hook in hooks:
            returned = hook(given)
            given = given if returned is None else returned
        twin = nn.Parameter(parameter.detach().clone())
        twin.grad = given
        for hook in later:
            hook(twin)
        assert twin.grad is not None
        return twin.grad

    return change
