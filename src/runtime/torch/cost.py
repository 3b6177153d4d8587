"""What a torch model costs a sample, and what the device could do at best."""

from __future__ import annotations

import copy
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

PEAK_SIZE = {"cpu": 1024, "cuda": 8192}


def measure(model: nn.Module, inputs: Tensor, device: torch.device) -> dict[str, Any]:
    """`flops_per_sample` (forward and backward), `saved_tensor_bytes_per_sample`, `peak_flops`.

    `inputs` are a few samples. The model is copied: neither gradients nor buffers are touched.
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
    return {
        "flops_per_sample": counter.get_total_flops() / len(inputs),
        "saved_tensor_bytes_per_sample": activations / len(inputs),
        **peak(device),
    }


def flops(model: nn.Module, inputs: Tensor) -> float:
    """FLOPs a sample, forward and backward: of matrix products and convolutions. The model is copied."""
    twin = copy.deepcopy(model).train()
    with FlopCounterMode(display=False) as counter:
        twin(inputs).float().sum().backward()
    return counter.get_total_flops() / len(inputs)


def peak(device: torch.device) -> dict[str, Any]:
    """`peak_flops` and where it comes from."""
    return {
        "peak_flops": peak_flops(device),
        "peak_source": f"measured: fp32 matrix product of {PEAK_SIZE[device.type]}",
    }


def peak_flops(device: torch.device) -> float:
    """FLOP/s of an fp32 matrix product on this rank's device; the best of several, for it is a peak."""
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
