"""Check that a model trains alike once it is sharded, before any rank is started."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from src.config import ConfigError
from src.models.torch.unchanged import evaluating
from src.runtime.common.context import RankContext
from src.runtime.torch import setup, shards, step_seeds
from src.runtime.torch.sharding.model_shards import ShardOptions, find_groups, reached_always, shard
from src.runtime.torch.tensors import input_tensors, target_tensors
from src.tasks.torch.outputs import autocast

# Steps that are compared, of so many samples, and what rounding may change of a gradient's norm.
STEPS, SAMPLES, BOUND = 2, 4, 1e-4
RATE = 1e-3


def check_sharding(context: RankContext, model: nn.Module) -> None:
    """Check that a model, sharded over this one process, has the losses and gradients that it has whole.

    `model` is the whole one; others are built to be trained.

    Raises:
        ConfigError: when it can't be sharded, or trains otherwise then.
    """
    strategy, cpu = context.config.strategy["name"], torch.device("cpu")
    reached_always(context, model, cpu)
    found = find_groups(context, model, cpu)
    # A model may draw from a generator of its own, which a look has moved.
    whole, twin = _train(context, _built(context)), _built(context)
    with _alone(context.folder):
        try:
            shard(twin, found, init_device_mesh("cpu", (1,)), reshard=ShardOptions.of(context.config).reshard)
            sharded = _train(context, twin)
        except Exception as error:
            # It ran whole: what fails is due to the shards, whatever torch or the model calls it.
            said = " ".join(str(error).split()) or type(error).__name__
            raise ConfigError(
                f"strategy={strategy}: the model can't be sharded: {said}; choose ddp"
            ) from error
    for step, (one, other) in enumerate(zip(whole, sharded, strict=True), 1):
        for name, value in one.items():
            if name not in other or not _close(other[name], value):
                raise ConfigError(
                    f"strategy={strategy}: sharded, the model trains otherwise: {name} differs in step "
                    f"{step}; choose ddp"
                )


def _built(context: RankContext) -> nn.Module:
    return setup.build(context, lambda _: None)


def _train(context: RankContext, model: nn.Module) -> list[dict[str, Tensor]]:
    """Train for a few steps of the first samples; return each one's loss [] and gradients by name.

    Between steps the model is evaluated.
    """
    task = setup.make_task(context)
    samples = context.arrays.train.read(slice(SAMPLES))
    inputs = input_tensors(context, samples.inputs, torch.device("cpu"))
    targets = target_tensors(task, samples.targets, torch.device("cpu"))
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    steps = []
    for step in range(STEPS):
        step_seeds.seed(context.config, 0, step)
        optimizer.zero_grad()
        with torch.enable_grad(), autocast(context.config.precision, torch.device("cpu")):
            loss = task.loss(task.outputs(model(*inputs)), targets) / SAMPLES
        loss.backward()
        gradients = {
            name: shards.whole(parameter.grad).clone()
            for name, parameter in model.named_parameters()
            if parameter.grad is not None
        }
        steps.append({"the loss": loss.detach(), **gradients})
        optimizer.step()
        if step == 0:
            reshard = getattr(model, "set_reshard_after_forward", lambda _: None)
            reshard(True)
            with evaluating(model):
                model(*inputs)
            reshard(ShardOptions.of(context.config).reshard)
    return steps


def _close(one: Tensor, other: Tensor) -> bool:
    return float((one - other).norm()) <= BOUND * float(other.norm())


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Form a process group of this process alone for the block."""
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "alone"), 1), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
