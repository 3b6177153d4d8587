"""Run a LightningModule's training step outside of a training, for a look at it."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from src.measure.rank_record import RankRecord
from src.models.torch.unchanged import unchanged
from src.runtime.common.context import RankContext
from src.runtime.torch import model_look
from src.runtime.torch.lightning.own_feed import first_batch
from src.tasks.torch.outputs import autocast

# Samples that facts are measured by, twice as many as a part of them.
SAMPLES = 4


@contextlib.contextmanager
def silent(model: pl.LightningModule) -> Iterator[None]:
    """Have nothing logged within the block."""
    held = vars(model).get("log")
    model.log = lambda *_, **__: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        del model.log
        if held is not None:
            model.log = held  # type: ignore[method-assign]


def call(model: pl.LightningModule, batch: Any, place: int) -> Any:
    """Call the author's training step as it is, with the batch, and its number if it takes that."""
    step = inspect.unwrap(model.training_step)
    takes_number = len(inspect.signature(step).parameters) > 1
    return step(batch, place) if takes_number else step(batch)


def reached_parameters(context: RankContext, model: pl.LightningModule) -> tuple[set[str], bool]:
    """Return what `model_look.reached_by` does, by the first training samples and the own step.

    Nothing is known of a step that needs a trainer: it returns none, and that they aren't always the same.
    """

    def run() -> Tensor:
        return _loss(call(model, batch, 0))

    cpu = torch.device("cpu")
    batch = first_batch(context, slice(2), cpu)
    try:
        with silent(model):
            return model_look.reached_by(model, run, cpu, precision=context.config.precision)
    except Exception:
        return set(), False


def facts(context: RankContext, model: pl.LightningModule, device: torch.device) -> RankRecord:
    """Return what one training step does, as `RankRecord` has it, and its FLOPs for each sample.

    What can't be found by a step of a few samples is left out, as where the step itself updates the weights.
    """
    found: RankRecord = {"batch_statistics": model_look.has_batch_statistics(model)}
    if not model.automatic_optimization:
        return found

    def run(samples: slice) -> Tensor:
        batch = first_batch(context, samples, device)
        with torch.enable_grad(), autocast(context.config.precision, device):
            return _loss(call(model, batch, 0))

    try:
        with silent(model):
            found |= model_look.step_facts(model, run, SAMPLES, precision=context.config.precision)
            with unchanged(model), FlopCounterMode(display=False) as counter:
                loss = run(slice(SAMPLES))
                trained = [each for each in model.parameters() if each.requires_grad]
                # Not `backward`, which would have DDP exchange gradients.
                torch.autograd.grad(loss, trained, allow_unused=True)
            found["flops_per_sample"] = counter.get_total_flops() / SAMPLES
    except Exception as error:
        print(f"nothing is found by a step of {SAMPLES} samples: {error}", flush=True)
    return found


def _loss(returned: Any) -> Tensor:
    loss = returned["loss"] if isinstance(returned, Mapping) else returned
    assert isinstance(loss, Tensor)
    return loss
