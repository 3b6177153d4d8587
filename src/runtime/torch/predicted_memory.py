"""Predict the live tensors of a rank's step before it trains, by its model and configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from src.config.schedules import SCHEDULES
from src.measure.live_step import LiveBytes
from src.partition import live_memory
from src.partition.live_memory import StageBytes
from src.partition.plan import CutOptions
from src.partition.schedules import tables
from src.partition.torch import pass_bytes
from src.partition.torch.stage import Stage, receive_buffers
from src.runtime.common.context import RankContext
from src.runtime.torch import scoring, update_rule
from src.runtime.torch.tensors import Tensors, input_tensors, target_tensors
from src.tasks.torch.outputs import model_outputs
from src.tasks.torch.task import Task


def of_copy(
    context: RankContext,
    model: nn.Module,
    task: Task,
    device: torch.device,
    *,
    buckets: bool = False,
    exchange: int = 0,
) -> LiveBytes:
    """Predict a step of a rank that holds the whole model.

    Args:
        context: the rank's context.
        model: its model.
        task: the configured task.
        device: where it computes.
        buckets: whether gradients stay in buckets, as those of DistributedDataParallel.
        exchange: bytes of further buffers of exchange.
    """
    config = context.config
    inputs, targets = _samples(context, task, config.microbatch, device)

    def loss(returned: Any, given: Tensors) -> Tensor:
        return _loss(task, task.outputs(returned), given)

    found = pass_bytes.whole_model(model, inputs, targets, loss, precision=config.precision)
    held, update = _held(context, model, [*inputs, *targets], _trained(model, found))
    held += live_memory.parts(exchange=exchange)
    all_trained = float(sum(each.nbytes for each in model.parameters() if each.requires_grad))
    return live_memory.whole_model(
        found, config.microbatches, held, update, buckets=all_trained if buckets else None
    )


def of_stages(
    context: RankContext,
    stages: Mapping[int, Stage],
    module: nn.Module,
    task: Task,
    device: torch.device,
    place: tuple[int, int],
) -> LiveBytes:
    """Predict a step of a rank that holds stages of a pipeline.

    Args:
        context: the rank's context.
        stages: those that it holds, by number.
        module: has the tensors of all of these.
        task: the configured task.
        device: where they run.
        place: the rank's place among those that hold the stages, and how many these are.
    """
    config, options = context.config, CutOptions.of(context.config)
    count, last = config.microbatches, place[1] * config.virtual_stages - 1
    again = range({"except_last": count - 1, "full": count}.get(options.recompute, 0))
    splits = options.schedule is not None and SCHEDULES[options.schedule].splits

    def of_outputs(returned: Any, given: Tensors) -> Tensor:
        return _loss(task, model_outputs(returned), given)

    inputs, targets = _samples(context, task, config.microbatch, device)
    found: dict[int, StageBytes] = {}
    for number, stage in stages.items():
        received = receive_buffers(stage.received, device) if number else inputs
        loss = of_outputs if stage.last else None
        for computed_again in {microbatch in again for microbatch in range(count)}:
            traced = pass_bytes.of_stage(
                stage,
                received,
                targets,
                loss,
                again=computed_again,
                splits=splits,
                first=number == 0,
                precision=config.precision,
            )
            earlier = found[number].passes if number in found else {}
            found[number] = replace(traced, passes={**earlier, **traced.passes})
    whole_inputs, whole_targets = _samples(context, task, config.worker_batch, device)
    batch = [*(whole_inputs if 0 in stages else ()), *(whole_targets if last in stages else ())]
    trained = {id(each): each for number, stage in stages.items() for each in _trained(stage, found[number])}
    held, update = _held(context, module, batch, list(trained.values()))
    exchange = sum(each.received for each in found.values())
    # What a stage has been given and hands on to another one of its rank is there once.
    exchange -= sum(each.output - each.kept for number, each in found.items() if number + 1 in found)
    exchange -= sum(each.sent_back - each.kept_back for number, each in found.items() if number - 1 in found)
    held += live_memory.parts(exchange=count * exchange)
    return live_memory.stages_of_rank(
        options.schedule,
        tables.table(options.schedule, place[1], config.virtual_stages, count)[place[0]],
        found,
        held,
        update,
        again=again,
        last=last,
        averages=config.degrees.data > 1,
    )


def _samples(context: RankContext, task: Task, count: int, device: torch.device) -> tuple[Tensors, Tensors]:
    """Return the inputs and targets of so many training samples."""
    samples = context.arrays.train.read(slice(count))
    return (
        input_tensors(context, samples.inputs, device),
        target_tensors(task, samples.targets, device),
    )


def _loss(task: Task, outputs: Tensors, targets: Tensors) -> Tensor:
    """Return the loss [] of outputs, summed up as in training."""
    return scoring.training_sums(task, outputs, targets, 1.0)[0]


def _trained(module: nn.Module, found: StageBytes) -> list[Tensor]:
    """Return the parameters of a model or stage that get gradients."""
    return [each for name, each in module.named_parameters() if name in found.trained]


def _held(
    context: RankContext, module: nn.Module, batch: Sequence[Tensor], trained: Sequence[Tensor]
) -> tuple[np.ndarray, float]:
    """Return what a rank holds between steps, without gradients [parts], and what an update makes.

    Args:
        context: the rank's context.
        module: the rank's model, or its part of the model.
        batch: the inputs and targets that it is fed.
        trained: the parameters that get gradients.
    """
    parameters = list(module.parameters())
    kept, update = pass_bytes.update_bytes(
        partial(update_rule.make_optimizer, context.config.optimizer), trained
    )
    held = live_memory.parts(
        weights=sum(each.nbytes for each in parameters),
        optimizer=kept,
        other=sum(each.nbytes for each in [*batch, *module.buffers()]),
    )
    return held, update
