"""Set a rank up for torch: its device and threads, the seeded model, facts of the model.

Lightning isn't imported here: parameter servers and their workers don't use it, and so start sooner.
"""

from __future__ import annotations

import ctypes
import functools
import gc
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from src.config import import_paths, own_training
from src.data.random_streams import RandomStream, key
from src.measure import memory
from src.measure.rank_record import RankRecord
from src.models import adapt
from src.runtime.common.context import RankContext
from src.runtime.torch import memory_format, model_cost, model_look, overlaps, step_seeds
from src.runtime.torch.audit import changes
from src.runtime.torch.tensors import input_tensors, target_tensors
from src.tasks.make import make
from src.tasks.torch.task import Task

# Samples of the first look at which parameters get gradients, and those that are looked at one by one.
FIRST, LOOKED = 2, 8


def root_device(context: RankContext) -> torch.device:
    """Return the rank's device: the one GPU that the launcher lets the rank see, or the CPU."""
    return torch.device("cuda", 0) if context.config.hardware.device == "gpu" else torch.device("cpu")


def process_group_backend(context: RankContext) -> str:
    """Return the backend for the rank's device: NCCL between GPUs, gloo on CPUs and where a GPU is shared."""
    gpu = context.config.hardware.device == "gpu"
    return "nccl" if gpu and not context.config.hardware.share_devices else "gloo"


def prepare_process(context: RankContext) -> None:
    """Set as many threads as the rank has cores, and begin to measure the process's memory."""
    torch.set_num_threads(len(context.cores))
    memory.mark_level(root_device(context))


def release() -> None:
    """Free the memory that only the preparation needed, and measure the memory's peak from here on."""
    gc.collect()  # a traced graph refers to itself
    ctypes.CDLL(None).malloc_trim(0)
    memory.restart_peak()


def build(context: RankContext, note: Callable[[str], None] = print) -> nn.Module:
    """Build the whole model with the seed's weights, the same on every rank.

    Its modules have the modes that its author gave them; a model that was returned in evaluation mode is to
    train as a whole. `note` is told what was done otherwise than asked for.

    Raises:
        ConfigError: where the strategy wouldn't train the model as it is.
    """
    seed = key(RandomStream.WEIGHTS, context.config.seed)
    torch.manual_seed(seed)
    step_seeds.seed_others(seed)
    with changes.building():
        model = _call_builder(context)
    changes.apply(context.config, model)
    if not model.training:
        model.train()
    if own_training.is_own(context.config):
        # Its forward may take something else than inputs; Lightning runs it as it is.
        return model
    example = input_tensors(context, context.arrays.test.read(slice(1)).inputs, torch.device("cpu"))
    if any(is_lazy(parameter) for parameter in model.parameters()):
        _initialize(model, example)
    if (failure := memory_format.lay_out(model, example)) is not None:
        note(f"note: the model runs in contiguous layout, for in channels_last, the faster one, {failure}")
    overlaps.check_memory(context.config, model)
    return model


def check_sizes(context: RankContext) -> None:
    """Build the model on torch's `meta` device; raise `ConfigError` for sizes that it refuses."""
    with torch.device("meta"):
        _call_builder(context)


def _call_builder(context: RankContext) -> nn.Module:
    """Return what the model's builder makes for the data."""
    arrays = context.arrays
    model: nn.Module = adapt.build(
        context.config,
        classes=arrays.classes,
        shape=arrays.shape,
        train_samples=arrays.train_samples,
        vocabulary=arrays.vocabulary,
    )
    return model


def weights(model: nn.Module) -> dict[str, np.ndarray]:
    """Return the bytes of a model's parameters by name, but of sparse, quantized and empty ones."""
    return {
        name: parameter.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        for name, parameter in model.named_parameters()
        if parameter.layout is torch.strided and not parameter.is_quantized and parameter.numel()
    }


@torch.no_grad()
def _initialize(model: nn.Module, example: Sequence[Tensor]) -> None:
    """Have lazy modules draw their weights, which they do once they have seen an input; modes stay."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()(*example)
    for module, mode in modes:
        module.training = mode


def make_task(context: RankContext) -> Task:
    """Make the configured task."""
    task: Task = make(context.config, classes=context.arrays.classes, shape=context.arrays.shape)
    return task


def reached_parameters(context: RankContext, model: nn.Module, device: torch.device) -> tuple[set[str], bool]:
    """Return what `model_look.reached_by` finds of the whole model by the first training samples.

    All processes of a run find the same. A model of the user's own is looked at with single samples, too, by
    which it may choose its layers; and it is another one that is looked at, for what a model holds besides
    its tensors can't be put back.
    """
    own = import_paths.has_own_model(context.config)
    looked = build(context, lambda _: None).to(device) if own else model
    samples, task = context.arrays.train.read(slice(LOOKED if own else FIRST)), make_task(context)
    inputs = input_tensors(context, samples.inputs, device)
    targets = target_tensors(task, samples.targets, device)

    def run(part: slice) -> Tensor:
        returned = looked(*(tensor[part] for tensor in inputs))
        return task.loss(task.outputs(returned), tuple(tensor[part] for tensor in targets))

    precision = context.config.precision
    reached, always = model_look.reached_by(
        looked, lambda: run(slice(FIRST)), device, precision=precision, weights=not own
    )
    if own and always:
        each = [functools.partial(run, slice(place, place + 1)) for place in range(len(inputs[0]))]
        further, alike = model_look.reached_by_each(looked, each, device, precision=precision)
        always = alike and further <= reached
        reached |= further
    return reached, always


def facts(
    context: RankContext, model: nn.Module, device: torch.device, *, spares_memory: bool = False
) -> RankRecord:
    """Return the facts of the whole model for the record; its costs are measured on `device`.

    If it `spares_memory`, they are measured without data where that can be.
    """
    samples = context.arrays.train.read(slice(4))
    task = make_task(context)
    inputs = input_tensors(context, samples.inputs, device)
    targets = target_tensors(task, samples.targets, device)
    counted: RankRecord = {
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    counted |= model_look.facts(model, inputs, precision=context.config.precision)
    measure = model_cost.simulated if spares_memory else model_cost.measure
    return counted | measure(model, task, inputs, targets, precision=context.config.precision)
