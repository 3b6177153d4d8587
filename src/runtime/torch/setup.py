"""Set a rank up for torch: its device and threads, the seeded model, facts of the model.

Lightning isn't imported here: parameter servers and their workers don't use it, and so start sooner.
"""

from __future__ import annotations

import torch
from torch import nn

from src.compat.torch import has_batch_statistics
from src.data.random_streams import RandomStream, key
from src.measure import memory
from src.measure.rank_record import RankRecord
from src.models import adapt
from src.runtime.common.context import RankContext
from src.runtime.torch import memory_format, model_cost
from src.runtime.torch.tensors import input_tensors, target_tensors
from src.tasks.make import make
from src.tasks.torch.task import Task


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


def build(context: RankContext) -> nn.Module:
    """Build the whole model with the seed's weights, the same on every rank."""
    torch.manual_seed(key(RandomStream.WEIGHTS, context.config.seed))
    arrays = context.arrays
    model: nn.Module = adapt.build(
        context.config, classes=arrays.classes, shape=arrays.shape, train_samples=arrays.train_samples
    )
    example = input_tensors(context, arrays.test.read(slice(1)).inputs, torch.device("cpu"))
    return memory_format.channels_last(model, example)


def make_task(context: RankContext) -> Task:
    """Make the configured task."""
    task: Task = make(context.config, classes=context.arrays.classes, shape=context.arrays.shape)
    return task


def facts(context: RankContext, model: nn.Module, device: torch.device) -> RankRecord:
    """Return the facts of the whole model for the record; its costs are measured on `device`."""
    samples = context.arrays.test.read(slice(4))
    task = make_task(context)
    inputs = input_tensors(context, samples.inputs, device)
    targets = target_tensors(task, samples.targets, device)
    counted: RankRecord = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "batch_statistics": has_batch_statistics(model),
    }
    return counted | model_cost.measure(model, task, inputs, targets, precision=context.config.precision)
