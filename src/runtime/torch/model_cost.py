"""Measure a torch model's FLOPs and activation bytes for each sample, and the peak FLOP/s of a device."""

from __future__ import annotations

import copy
import time

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from src.measure.rank_record import RankRecord

# Rows and columns of the matrices whose product measures the peak.
PEAK_SIZE = {"cpu": 1024, "cuda": 8192}


def measure(model: nn.Module, inputs: Tensor, device: torch.device) -> RankRecord:
    """Measure `flops_per_sample` (forward and backward), `saved_tensor_bytes_per_sample` and `peak_flops`.

    Args:
        model: measured on a copy, so that its gradients and buffers stay as they are.
        inputs: a few samples [samples, channels, height, width], on `device`.
        device: where the peak is measured.
    """
    twin = copy.deepcopy(model).train()
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with FlopCounterMode(display=False) as counter:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = twin(inputs).float().sum()
        loss.backward()
    weights = {parameter.untyped_storage().data_ptr() for parameter in twin.parameters()}
    activations = sum(size for pointer, size in saved.items() if pointer not in weights)
    measured: RankRecord = {
        "flops_per_sample": counter.get_total_flops() / len(inputs),
        "saved_tensor_bytes_per_sample": activations / len(inputs),
    }
    return measured | peak(device)


def flops(model: nn.Module, inputs: Tensor) -> float:
    """Count the FLOPs of the matrix products and convolutions for one sample, forward and backward.

    Args:
        model: measured on a copy, so that its gradients and buffers stay as they are.
        inputs: a few samples [samples, channels, height, width].
    """
    twin = copy.deepcopy(model).train()
    with FlopCounterMode(display=False) as counter:
        twin(inputs).float().sum().backward()
    return counter.get_total_flops() / len(inputs)


def peak(device: torch.device) -> RankRecord:
    """Measure `peak_flops` of a device, and add `peak_source`, which says how that was measured."""
    return {
        "peak_flops": peak_flops(device),
        "peak_source": f"measured: fp32 matrix product of {PEAK_SIZE[device.type]}",
    }


def peak_flops(device: torch.device) -> float:
    """Return the FLOP/s of an fp32 matrix product on a device: the best of several measurements."""
    size = PEAK_SIZE[device.type]
    left = torch.rand(size, size, device=device)
    durations = []
    for _ in range(6):
        start = time.perf_counter()
        left @ left
        if device.type == "cuda":
            torch.cuda.synchronize()
        durations.append(time.perf_counter() - start)
    return 2 * size**3 / min(durations)
