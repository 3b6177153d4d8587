"""Compile a model by torch.compile, as `strategy.compile` says, before the clock starts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from src.data.catalog import cache_folder
from src.models.torch.unchanged import unchanged
from src.runtime.common.context import RankContext
from src.tasks.torch.outputs import autocast, model_outputs


def is_configured(context: RankContext) -> bool:
    """Return whether models are to be compiled."""
    return bool(context.config.strategy.get("compile", False))


def compile_model(context: RankContext, model: nn.Module) -> None:
    """Have `model` compiled when it is first called, if that is configured; its names stay as they are.

    What was compiled is kept in the user's cache folder, where later runs find it.
    """
    if not is_configured(context):
        return
    # Otherwise one for each core of the machine.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = str(len(context.cores))
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "inductor"))
    model.compile()


def warm_up(context: RankContext, model: nn.Module, inputs: Sequence[Tensor]) -> None:
    """Compile a training step's forward and backward pass for tensors like `inputs`.

    Weights, gradients, buffers and random numbers stay as they are. Nothing is done where `compile_model`
    does nothing.
    """
    if not is_configured(context):
        return
    device = inputs[0].device
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with unchanged(model):
        with torch.enable_grad(), autocast(context.config.precision, device):
            results = model(*inputs)
        leaves = [tensor for tensor in (*inputs, *parameters) if tensor.requires_grad]
        roots = [each for each in model_outputs(results) if each.requires_grad]
        # Not `backward`, which would fill gradients and have DDP exchange them.
        if roots and leaves:
            torch.autograd.grad(roots, leaves, [torch.ones_like(root) for root in roots], allow_unused=True)


def without(context: RankContext) -> AbstractContextManager[object]:
    """Run models as they were written within the block, whether or not they are to be compiled."""
    if not is_configured(context):
        # torch imports its compiler for the other answer.
        return contextlib.nullcontext()
    return torch.compiler.set_stance("force_eager")
