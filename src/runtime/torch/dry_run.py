"""Look at a rank's step by a dry run of it, on tensors without data: what is live, and what is computed.

What divides the model into shards, or its layers into parts, gathers it and exchanges gradients is the
strategy's own code. Collective calls of tensors without data send nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from src.compat.live_tensors import LiveTensors, propagation_apart
from src.compat.torch import TensorsWithoutData, gathered_parameters
from src.measure.kernels import Trace
from src.measure.live_step import LiveBytes
from src.runtime.common.context import RankContext
from src.runtime.torch import scoring, setup, shards, update_rule
from src.runtime.torch.kernel_counter import KernelCounter
from src.runtime.torch.tensors import first_samples
from src.tasks.torch.outputs import autocast
from src.tasks.torch.task import Task

# Divides a whole model in place; returns the rank's part, and what is to be done with its gradients between
# the backward pass and the update. It may tell the counter of gradients that come into buckets.
Divide = Callable[[nn.Module, KernelCounter], tuple[nn.Module, Callable[[], None]]]
# The optimizer's state, and what is gathered into, are made in the first one.
STEPS = 2


@dataclass(frozen=True)
class Look:
    """A look at a step: what is live, and what is computed and exchanged."""

    live: LiveBytes
    trace: Trace


def look(
    context: RankContext,
    task: Task,
    device: torch.device,
    divide: Divide,
    *,
    foreach: bool | None = None,
    waits: bool = True,
) -> Look:
    """Look at a step of a rank; the ranks needn't do so together.

    Args:
        context: the rank's context.
        task: the configured task.
        device: where the rank computes.
        divide: divides the whole model.
        foreach: whether the optimizer takes all parameters at once, as on a GPU; by default as on `device`.
        waits: whether sums over ranks are waited for at once.
    """
    try:
        return _look(
            context,
            task,
            device,
            divide,
            foreach=device.type == "cuda" if foreach is None else foreach,
            waits=waits,
        )
    finally:
        # A rank's peak of memory is that of its training.
        setup.release()


def _look(
    context: RankContext, task: Task, device: torch.device, divide: Divide, *, foreach: bool, waits: bool
) -> Look:
    config = context.config
    samples = first_samples(context, task, config.microbatch, device)
    fake = TensorsWithoutData(allow_non_fake_inputs=True)
    whole = setup.build(context, lambda _: None).to(device)
    inputs, targets = (tuple(map(fake.from_tensor, each)) for each in samples)
    forget_data(whole, fake)
    counter = KernelCounter(fake, waits=waits)
    with fake, propagation_apart(), counter, LiveTensors() as live:
        model, settle = divide(whole, counter)
        optimizer = update_rule.make_optimizer(config.optimizer, shards.apart([*model.parameters()]))
        for group in optimizer.param_groups:
            # torch's own choice, which it makes by the kind of tensor, too.
            group["foreach"] = foreach
        live.name("weights", model.parameters())
        live.name("other", [*inputs, *targets, *model.buffers()])

        def loss() -> Tensor:
            with autocast(config.precision, device):
                outputs = task.outputs(model(*inputs))
                return scoring.training_sums(task, outputs, targets, 1.0)[0]

        def update() -> None:
            # Averaged gradients are waited for before anything is done with them.
            counter.update()
            settle()
            optimizer.step()

        for _ in range(STEPS):
            began = len(live.changes)
            counter.begin()
            _train(model, loss, config.microbatches, optimizer, update, live)
        # Shards that are smaller than others are made anew in the first step.
        live.name("weights", model.parameters())
        live.name("exchange", gathered_parameters(model))
        live.name("optimizer", _tensors_of(optimizer))
    return Look(LiveBytes.of(live.parts()).since(began), counter.trace())


def _train(
    model: nn.Module,
    loss: Callable[[], Tensor],
    microbatches: int,
    optimizer: torch.optim.Optimizer,
    update: Callable[[], None],
    live: LiveTensors,
) -> None:
    """Take a step as Lightning's loop does, which forgets gradients after the first forward pass."""
    for number in range(microbatches):
        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(number == microbatches - 1)
        value = loss()
        if not number:
            optimizer.zero_grad()
        value.backward()
        del value
        live.name("gradients", [each.grad for each in model.parameters() if each.grad is not None])
    live.updating(True)
    update()
    live.updating(False)


def forget_data(model: nn.Module, fake: TensorsWithoutData) -> None:
    """Have a model hold tensors without data instead of its parameters and buffers, tied ones once."""
    made: dict[int, Tensor] = {}
    for module in model.modules():
        named = (module.named_parameters, module.named_buffers)
        own = [each for names in named for each in names(recurse=False, remove_duplicate=False)]
        for name, tensor in own:
            if id(tensor) not in made:
                made[id(tensor)] = fake.from_tensor(tensor)
            setattr(module, name, made[id(tensor)])


def _tensors_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the tensors of an optimizer's state."""
    return [each for own in optimizer.state.values() for each in own.values() if isinstance(each, Tensor)]
