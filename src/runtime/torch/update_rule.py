"""Update parameters by the configured rule: torch's optimizers, their rate, the clipping of gradients.

A gradient is clipped before weight decay is added to it, for torch's optimizers add theirs in the step.
`src/runtime/tensorflow/update_rule.py` has the same rules for Keras.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import utils


def make_optimizer(
    settings: Mapping[str, Any], parameters: Iterable[Tensor] | Iterable[dict[str, Any]]
) -> torch.optim.Optimizer:
    """Make the optimizer of `parameters` that `settings`, the configuration's `optimizer`, describe.

    They may be in groups, as torch's optimizers take them.

    Weight decay is added to the gradient (L2), but by `adamw` taken from the parameters themselves
    (Loshchilov 2019, algorithm 2). Its rate is `lr` until `set_rate` is called.
    """
    common = {"lr": settings["lr"], "weight_decay": settings["weight_decay"]}
    if settings["name"] == "adam":
        return torch.optim.Adam(parameters, **common)
    if settings["name"] == "adamw":
        return torch.optim.AdamW(parameters, **common)
    if settings["name"] == "adagrad":
        return torch.optim.Adagrad(parameters, **common)
    return torch.optim.SGD(parameters, momentum=settings["momentum"], **common)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of an optimizer's next step."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def clip(
    parameters: Iterable[Tensor],
    limit: float,
    total: Callable[[Tensor], Tensor] = lambda squares: squares,
    counts: Callable[[Tensor], bool] = lambda parameter: True,
) -> None:
    """Scale gradients so that the norm of the whole model's gradient is `limit`, if it is larger.

    The factor is min(1, limit / (norm + 1e-6)), as in `torch.nn.utils.clip_grad_norm_`.

    Args:
        parameters: those whose gradients are changed in place; there may be none.
        limit: the greatest norm.
        total: returns the squared norm [] of the whole model's gradient, from that of `parameters`' alone.
        counts: whether a parameter's gradient is a part of that norm, and not counted by another rank.
    """
    having = [parameter for parameter in parameters if parameter.grad is not None]
    counted = [parameter.grad for parameter in having if parameter.grad is not None and counts(parameter)]
    norm = utils.get_total_norm(counted)
    utils.clip_grads_with_norm_(having, limit, total(norm.double().square()).sqrt())
