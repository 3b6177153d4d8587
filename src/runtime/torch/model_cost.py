"""Measure a torch model's FLOPs and activation bytes for each sample."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from src.compat.torch import flop_counter
from src.measure.rank_record import RankRecord
from src.models.torch.unchanged import unchanged
from src.partition.torch.saved_tensors import saved_storages
from src.partition.torch.simulation import State, Tensors, simulate
from src.tasks.torch.outputs import autocast, model_outputs
from src.tasks.torch.task import Task


def measure(
    model: nn.Module,
    task: Task,
    inputs: Sequence[Tensor],
    targets: Sequence[Tensor],
    *,
    precision: str = "fp32",
) -> RankRecord:
    """Measure `flops_per_sample` (forward and backward) and what autograd saves.

    `saved_tensor_bytes_per_sample` and `saved_tensor_bytes_fixed` are of the forward pass and the loss of one
    micro-batch, weights and buffers left out. What is fixed are, in bf16, the weights' casts, and statistics
    of a batch.

    Args:
        model: a model that trains, which is left as it was.
        task: gives the loss.
        inputs: those of a few samples [samples, ...], on the model's device.
        targets: those of the same samples [samples, ...].
        precision: that of the training, `fp32` or `bf16`.
    """
    twin = _twin(model)
    with unchanged(twin), flop_counter() as counter:
        whole, loss = _saved_bytes(twin, task, inputs, targets, precision)
        loss.backward()
    count, half = len(inputs[0]), len(inputs[0]) // 2
    few, fewer = ([tensor[:half] for tensor in tensors] for tensors in (inputs, targets))
    # One sample has no statistics of a batch.
    with unchanged(twin):
        part = _saved_bytes(twin, task, few, fewer, precision)[0] if half > 1 else 0.0
    per_sample = (whole - part) / (count - half) if half > 1 else whole / count
    return {
        "flops_per_sample": counter.get_total_flops() / count,
        "saved_tensor_bytes_per_sample": per_sample,
        "saved_tensor_bytes_fixed": whole - per_sample * count,
    }


def simulated(
    model: nn.Module,
    task: Task,
    inputs: Sequence[Tensor],
    targets: Sequence[Tensor],
    *,
    precision: str = "fp32",
) -> RankRecord:
    """Return what `measure` does, by tensors without data where the model runs on these.

    It takes no memory for a copy of the model and its gradients. The arguments are those of `measure`.
    """
    count, half = len(inputs[0]), len(inputs[0]) // 2

    def of(samples: int) -> tuple[float, int]:
        def run(state: State, given: Tensors) -> tuple[float, int]:
            taken, expected = given[: len(inputs)], given[len(inputs) :]
            with flop_counter() as counter:
                with saved_storages(model, state.values()) as saved:
                    loss = task.loss(task.outputs(functional_call(model, state, taken)), expected)
                loss.backward()
            kept = sum(storage.nbytes() for _, storage in saved.values())
            return kept, counter.get_total_flops()

        # The slice of a batch has the storage of all of it.
        given = [tensor[:samples].clone() for tensor in (*inputs, *targets)]
        return simulate(model, given, run, precision=precision)

    with unchanged(model, weights=False):
        whole, flops = of(count)
        part = of(half)[0] if half > 1 else 0.0
    per_sample = (whole - part) / (count - half) if half > 1 else whole / count
    return {
        "flops_per_sample": flops / count,
        "saved_tensor_bytes_per_sample": per_sample,
        "saved_tensor_bytes_fixed": whole - per_sample * count,
    }


def _saved_bytes(
    model: nn.Module, task: Task, inputs: Sequence[Tensor], targets: Sequence[Tensor], precision: str
) -> tuple[float, Tensor]:
    """Return the bytes that autograd saves of a forward pass and its loss, and that loss []."""
    # The slice of a batch has the storage of all of it.
    inputs, targets = (tuple(tensor.clone() for tensor in tensors) for tensors in (inputs, targets))
    with autocast(precision, inputs[0].device), saved_storages(model) as saved:
        loss = task.loss(task.outputs(model(*inputs)), targets)
    return sum(storage.nbytes() for _, storage in saved.values()), loss


def flops(model: nn.Module, inputs: Sequence[Tensor]) -> float:
    """Count the FLOPs of the matrix products and convolutions for one sample, forward and backward.

    Args:
        model: a model that trains, which is left as it was.
        inputs: those of a few samples [samples, ...].
    """
    twin = _twin(model)
    with unchanged(twin), flop_counter() as counter:
        outputs = model_outputs(twin(*inputs))
        sums = [each.float().sum() for each in outputs if each.requires_grad]
        torch.stack(sums).sum().backward()
    return counter.get_total_flops() / len(inputs[0])


def _twin(model: nn.Module) -> nn.Module:
    """Return a copy of a model whose gradients DDP doesn't exchange; itself if it can't be copied.

    Old-style `weight_norm` and `spectral_norm` make such models.
    """
    try:
        return copy.deepcopy(model)
    except RuntimeError:
        return model
