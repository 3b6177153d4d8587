"""Prove a plan: compare a step of the split model with one of the whole model, before anything is trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from src.config import ConfigError
from src.models.torch.unchanged import unchanged
from src.runtime.common.context import RankContext
from src.runtime.torch import setup, shards
from src.runtime.torch.looks import SAMPLES, few, float64
from src.runtime.torch.tensor import finding, plan
from src.runtime.torch.tensor.group import TensorGroup
from src.runtime.torch.tensor.plan import Plan
from src.runtime.torch.tensors import Tensors, input_tensors, target_tensors

# The largest relative norm of a difference, in fp32, and in float64, beside which parts of a model may
# compute in fp32 all the same.
BOUND, SHARP = 1e-5, 1e-6
# A gradient below this share of the whole model's is rounding for the most part.
SMALL = 1e-3
SEED = 0


@dataclass(frozen=True)
class Step:
    """The results of a step of a few samples: outputs, and gradients and buffers by name."""

    outputs: Tensors
    gradients: Mapping[str, Tensor | None]
    buffers: Mapping[str, Tensor]


@dataclass(frozen=True)
class Steps:
    """A step of a model in training, and one in evaluation."""

    training: Step
    evaluation: Step


def steps(context: RankContext, model: nn.Module, device: torch.device) -> Steps:
    """Return what a model on `device` computes of the first samples; leave the model as it was."""
    return Steps(*(_step(context, model, device, training=training) for training in (True, False)))


def _step(context: RankContext, model: nn.Module, device: torch.device, *, training: bool) -> Step:
    task = setup.make_task(context)
    count = few(input_tensors(context, context.arrays.train.read(slice(SAMPLES)).inputs, torch.device("cpu")))
    samples = context.arrays.train.read(slice(count))
    inputs = input_tensors(context, samples.inputs, device)
    targets = target_tensors(task, samples.targets, device)
    with unchanged(model):
        if not training:
            model.eval()
        torch.manual_seed(SEED)
        model.zero_grad()
        with torch.enable_grad():
            outputs = task.outputs(model(*inputs))
            (task.loss(outputs, targets) / count).backward()
        gradients = {name: each.grad for name, each in model.named_parameters()}
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    return Step(tuple(each.detach() for each in outputs), gradients, buffers)


def prove(
    context: RankContext,
    model: nn.Module,
    expected: Steps,
    found: Plan,
    group: TensorGroup,
    device: torch.device,
) -> None:
    """Compare what a split model computes with what it did as a whole; all ranks call this function.

    Where something is drawn at random between layers, training draws otherwise, and evaluation is compared.

    Args:
        context: the rank's context.
        model: the split model.
        expected: what `steps` returned of the whole model.
        found: the plan.
        group: the ranks that share the model.
        device: the rank's device.

    Raises:
        ConfigError: where they differ; on all ranks.
    """
    wide = torch.get_default_dtype() == torch.float64
    bound = SHARP if wide else BOUND
    difference = _agreed(_compare(context, model, expected, found, group, device, bound))
    if difference is not None and not wide:
        # A deep model magnifies rounding; what is another model is one in float64, too.
        difference = _agreed(_compare_wide(context, found, group, device))
    if difference is not None:
        raise ConfigError(
            f"strategy={context.config.strategy['name']}: split by {found.source} the model computes "
            f"something else: {difference}; give another strategy.plan, or choose another strategy"
        )
    group.region.watches = False


def _compare_wide(context: RankContext, found: Plan, group: TensorGroup, device: torch.device) -> str | None:
    with float64():
        twin = setup.build(context, lambda _: None).double().to(device)
        expected = steps(context, twin, device)
        plan.parallelize(twin, found, group)
        return _compare(context, twin, expected, found, group, device, SHARP)


def _compare(
    context: RankContext,
    model: nn.Module,
    expected: Steps,
    found: Plan,
    group: TensorGroup,
    device: torch.device,
    bound: float,
) -> str | None:
    """Return what differs first, `None` if nothing does."""
    group.region.watches = True
    try:
        split = steps(context, model, device)
    except Exception as error:
        raise ConfigError(finding.failure(context, found, error)) from error
    pairs = [(expected.evaluation, split.evaluation, "in evaluation")]
    if not group.region.draws:
        pairs.insert(0, (expected.training, split.training, "in training"))
    differences = (
        f"{what} {mode} by {gap:.1e} of its norm"
        for whole, parts, mode in pairs
        for what, gap in _gaps(whole, parts)
        if not gap <= bound
    )
    return next(differences, None)


def _gaps(whole: Step, parts: Step) -> Iterator[tuple[str, float]]:
    """Yield how far each of a split model's tensors is from the whole model's, relative to its norm."""
    for number, (one, other) in enumerate(zip(whole.outputs, parts.outputs, strict=True)):
        yield f"output {number} differs", _gap(one, other)
    norms = [float(each.double().norm()) for each in whole.gradients.values() if each is not None]
    least = SMALL * sum(norm**2 for norm in norms) ** 0.5
    for name, gradient in whole.gradients.items():
        own, what = parts.gradients[name], f"the gradient of {name} differs"
        if gradient is None or own is None:
            yield what, 0.0 if gradient is own else float("inf")
        else:
            yield what, _gap(_part(gradient, own), shards.local(own), least)
    for name, buffer in whole.buffers.items():
        yield f"the buffer {name} differs", _gap(buffer, parts.buffers[name])


def _part(whole: Tensor, split: Tensor) -> Tensor:
    """Return what this rank has of a whole tensor that is split as another one."""
    filled = torch.empty_like(split)
    shards.fill(filled, whole)
    return shards.local(filled)


def _gap(one: Tensor, other: Tensor, least: float = 0.0) -> float:
    if one.shape != other.shape:
        return float("inf")
    expected, found = one.double(), other.double()
    gap, norm = float((expected - found).norm()), max(float(expected.norm()), least)
    return gap / norm if norm and gap else gap


def _agreed(difference: str | None) -> str | None:
    """Return what some rank has found, the same on all of them."""
    differences: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(differences, difference)
    return next((each for each in differences if each is not None), None)
