"""Predict the live tensors of a rank's step before it trains, by its model and configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from src.config import Config
from src.config.schedules import SCHEDULES
from src.measure.live_step import LiveBytes
from src.partition import live_memory, live_pipedream
from src.partition.live_memory import StageBytes
from src.partition.live_pipedream import Asynchronous
from src.partition.plan import CutOptions
from src.partition.schedules import tables
from src.partition.schedules.pipedream import WeightRule
from src.partition.torch import pass_bytes, transfer
from src.partition.torch.stage import Stage, receive_buffers
from src.runtime.common.context import RankContext
from src.runtime.torch import scoring, update_rule
from src.runtime.torch.tensors import Tensors, first_samples
from src.tasks.torch.outputs import model_outputs
from src.tasks.torch.task import Task


@dataclass(frozen=True)
class CopyMemory:
    """The tensors that a Lightning strategy holds besides a copy of the model: its attribute `memory`.

    Attributes:
        buckets: whether gradients stay in buckets, as those of DistributedDataParallel.
        exchange: bytes of further buffers of exchange.
        vectors: how many vectors of all trained parameters it holds between steps.
        averaged: how many of exchange it makes after the update, for a moment.
        mapped: bytes of buffers of exchange that it makes there for good.
    """

    buckets: bool = False
    exchange: int = 0
    vectors: int = 0
    averaged: int = 0
    mapped: int = 0


def of_copy(
    context: RankContext, model: nn.Module, task: Task, device: torch.device, memory: CopyMemory
) -> LiveBytes:
    """Predict a step of a rank that holds the whole model.

    Args:
        context: the rank's context.
        model: its model.
        task: the configured task.
        device: where it computes.
        memory: what the strategy holds.
    """
    config = context.config
    inputs, targets = first_samples(context, task, config.microbatch, device)

    def loss(returned: Any, given: Tensors) -> Tensor:
        return _loss(task, task.outputs(returned), given)

    found = pass_bytes.whole_model(model, inputs, targets, loss, precision=config.precision)
    held, update = _held(context, model, [*inputs, *targets], _trained(model, found))
    vector = float(sum(each.nbytes for each in model.parameters() if each.requires_grad))
    held += live_memory.parts(exchange=memory.exchange, other=memory.vectors * vector)
    return live_memory.whole_model(
        found,
        config.microbatches,
        held,
        update,
        buckets=vector if memory.buckets else None,
        averages=memory.averaged * vector + memory.mapped,
    )


def of_stages(
    context: RankContext,
    stages: Mapping[int, Stage],
    module: nn.Module,
    task: Task,
    device: torch.device,
    place: tuple[int, int],
    *,
    foreach: bool | None = None,
    passes: Mapping[int, StageBytes] | None = None,
) -> LiveBytes:
    """Predict a step of a rank that holds stages of a pipeline.

    Args:
        context: the rank's context.
        stages: those that it holds, by number.
        module: has the tensors of all of these.
        task: the configured task.
        device: where they run.
        place: the rank's place among those that hold the stages, and how many these are.
        foreach: whether the optimizer takes all parameters at once; by default as on `device`.
        passes: what those of each stage make and free, as `of_passes` finds it; found here by default.
    """
    config, options = context.config, CutOptions.of(context.config)
    last = place[1] * config.virtual_stages - 1
    if passes is None:
        passes = {n: of_passes(context, stage, task, device, first=n == 0) for n, stage in stages.items()}
    again, count = _again(config), config.microbatches
    whole_inputs, whole_targets = first_samples(context, task, config.worker_batch, device)
    batch = [*(whole_inputs if 0 in stages else ()), *(whole_targets if last in stages else ())]
    trained = {id(each): each for number, stage in stages.items() for each in _trained(stage, passes[number])}
    held, update = _held(context, module, batch, list(trained.values()), foreach=foreach)
    exchange = sum(each.received for each in passes.values())
    # What a stage has been given and hands on to another one of its rank is there once.
    exchange -= sum(each.output - each.kept for number, each in passes.items() if number + 1 in passes)
    exchange -= sum(
        each.sent_back - each.kept_back for number, each in passes.items() if number - 1 in passes
    )
    held += live_memory.parts(exchange=count * exchange)
    return live_memory.stages_of_rank(
        options.schedule,
        tables.table(options.schedule, place[1], config.virtual_stages, count)[place[0]],
        passes,
        held,
        update,
        again=again,
        last=last,
        averages=config.degrees.data > 1,
    )


def of_passes(
    context: RankContext, stage: Stage, task: Task, device: torch.device, *, first: bool
) -> StageBytes:
    """Return what the passes of each micro-batch of a stage make and free, which need no other stages.

    Args:
        context: the rank's context.
        stage: the stage.
        task: the configured task.
        device: where it runs.
        first: whether this is the model's first stage.
    """
    config, schedule = context.config, CutOptions.of(context.config).schedule
    splits = schedule is not None and SCHEDULES[schedule].splits
    inputs, targets = first_samples(context, task, config.microbatch, device)
    again = _again(config)
    every = [
        _traced(context, task, stage, inputs, targets, first=first, again=computed_again, splits=splits)
        for computed_again in sorted({number in again for number in range(config.microbatches)})
    ]
    return replace(every[-1], passes={kind: sizes for each in every for kind, sizes in each.passes.items()})


def _again(config: Config) -> range:
    """Return the micro-batches of a step whose forward passes are computed again."""
    count = config.microbatches
    return range({"except_last": count - 1, "full": count}.get(CutOptions.of(config).recompute, 0))


def of_asynchronous_stage(
    context: RankContext, stage: Stage, task: Task, device: torch.device, rule: WeightRule, most_sent: int
) -> LiveBytes:
    """Predict a step of a rank that trains a stage by PipeDream: the warm-up's last one.

    Args:
        context: the rank's context.
        stage: the stage.
        task: the configured task.
        device: where it runs.
        rule: which weights its micro-batches see.
        most_sent: how many tensors are kept after they were sent.
    """
    config = context.config
    again, first = CutOptions.of(config).recompute == "full", rule.stage == 0
    inputs, targets = first_samples(context, task, config.microbatch, device)
    found = _traced(context, task, stage, inputs, targets, first=first, again=again, keeps_output=False)
    inputs, targets = first_samples(context, task, config.worker_batch, device)
    batch = [*(inputs if first else ()), *(targets if stage.last else ())]
    held, update = _held(context, stage, [], _trained(stage, found))
    # What is kept of tensors that were sent is then in the host's memory.
    by_host = transfer.stages_through_host(device)
    options = Asynchronous(
        rule=rule,
        weights=sum(each.nbytes for each in stage.parameters() if each.requires_grad),
        batch=sum(each.nbytes for each in batch),
        ahead=0 if by_host or stage.last else len(stage.sent),
        back=0 if by_host else sum(each.requires_grad for each in stage.received),
        most_sent=most_sent,
        again=again,
        update=update,
    )
    return live_pipedream.live_bytes(found, options, held, config.warmup_steps)


def _traced(
    context: RankContext,
    task: Task,
    stage: Stage,
    inputs: Tensors,
    targets: Tensors,
    *,
    first: bool,
    again: bool,
    splits: bool = False,
    keeps_output: bool = True,
) -> StageBytes:
    """Return what a stage's passes of one micro-batch make and free; `inputs` are the model's."""

    def loss(returned: Any, given: Tensors) -> Tensor:
        return _loss(task, model_outputs(returned), given)

    return pass_bytes.of_stage(
        stage,
        inputs if first else receive_buffers(stage.received, inputs[0].device),
        targets,
        loss if stage.last else None,
        again=again,
        splits=splits,
        first=first,
        keeps_output=keeps_output,
        precision=context.config.precision,
    )


def _loss(task: Task, outputs: Tensors, targets: Tensors) -> Tensor:
    """Return the loss [] of outputs, summed up as in training."""
    return scoring.training_sums(task, outputs, targets, 1.0)[0]


def _trained(module: nn.Module, found: StageBytes) -> list[Tensor]:
    """Return the parameters of a model or stage that get gradients."""
    return [each for name, each in module.named_parameters() if name in found.trained]


def _held(
    context: RankContext,
    module: nn.Module,
    batch: Sequence[Tensor],
    trained: Sequence[Tensor],
    *,
    foreach: bool | None = None,
) -> tuple[np.ndarray, float]:
    """Return what a rank holds between steps, without gradients [parts], and what an update makes.

    Args:
        context: the rank's context.
        module: the rank's model, or its part of the model.
        batch: the inputs and targets that it is fed.
        trained: the parameters that get gradients.
        foreach: as of `of_stages`.
    """
    parameters = list(module.parameters())
    kept, update = pass_bytes.update_bytes(
        partial(update_rule.make_optimizer, context.config.optimizer), trained, foreach=foreach
    )
    held = live_memory.parts(
        weights=sum(each.nbytes for each in parameters),
        optimizer=kept,
        other=sum(each.nbytes for each in [*batch, *module.buffers()]),
    )
    return held, update
