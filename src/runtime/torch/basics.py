"""What every rank does with a model, under Lightning or not: its device, seeded copy, sums and facts.

Lightning isn't imported here: parameter servers and their workers do without, and start sooner.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from src.measure import memory
from src.models import adapt
from src.runtime.torch import cost, memory_format
from src.runtime.torch.feed import to_inputs
from src.worker import Run


def root_device(run: Run) -> torch.device:
    """The rank's own device: the launcher shows each rank one GPU, or pins it to its cores."""
    return torch.device("cuda", 0) if run.config.hardware["device"] == "gpu" else torch.device("cpu")


def begin(run: Run) -> None:
    """Threads as many as cores; memory counts from here on."""
    torch.set_num_threads(len(run.cores))
    memory.start(root_device(run))


def build(run: Run) -> nn.Module:
    """The whole model with the seed's weights, the same on every rank."""
    torch.manual_seed(run.config.seed)
    model: nn.Module = adapt.build(run.config, classes=run.arrays.classes, shape=run.arrays.shape)
    return memory_format.channels_last(model, run.arrays.shape)


def sums(loss: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    """(`loss`, correct answers, samples) as one tensor [3] on the logits' device."""
    correct = (logits.argmax(1) == labels).sum()
    return torch.stack([loss, correct, correct * 0 + len(labels)])


def optimizer_of(chosen: Mapping[str, Any], parameters: list[Tensor]) -> torch.optim.Optimizer:
    """The optimizer of a configuration, over `parameters`."""
    if chosen["name"] == "adam":
        return torch.optim.Adam(parameters, lr=chosen["lr"])
    if chosen["name"] == "adagrad":
        return torch.optim.Adagrad(parameters, lr=chosen["lr"])
    return torch.optim.SGD(parameters, lr=chosen["lr"], momentum=chosen["momentum"])


def facts(run: Run, model: nn.Module, device: torch.device) -> dict[str, Any]:
    """What the record says of the whole model."""
    sample = to_inputs(run, torch.from_numpy(run.arrays.test_images[:4].copy()), device)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "batch_statistics": any(isinstance(m, _BatchNorm) for m in model.modules()),
        **cost.measure(model, sample, device),
    }
