"""Find out what autograd saves of one micro-batch in a stage, on tensors without data."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor
from torch.func import functional_call

from src.compat.torch import FakeTensorMode, storage_id
from src.partition.saved_tensors import SavedTensors
from src.partition.torch.stage import Stage
from src.tasks.torch.outputs import model_outputs
from src.tasks.torch.task import Task


def saved_tensors(
    stage: Stage,
    received: Sequence[Tensor],
    task: Task,
    targets: Sequence[Tensor],
    *,
    autocast: bool = False,
) -> SavedTensors:
    """Return the bytes that autograd saves of one micro-batch, the loss included in the last stage.

    The stage and its buffers stay as they are. Where a layer looks at its data, the stage runs on copies.

    Args:
        stage: the stage, on its device.
        received: what it receives: inputs or boundary tensors of one micro-batch; their values are not read.
        task: gives the loss.
        targets: those of the micro-batch.
        autocast: whether it trains in bf16.
    """
    fake = FakeTensorMode()
    try:
        return _run(stage, received, task, targets, autocast, fake.from_tensor, fake)
    except Exception:
        return _run(stage, received, task, targets, autocast, _copy, contextlib.nullcontext())


def _run(
    stage: Stage,
    received: Sequence[Tensor],
    task: Task,
    targets: Sequence[Tensor],
    autocast: bool,
    convert: Callable[[Tensor], Tensor],
    mode: AbstractContextManager[object],
) -> SavedTensors:
    state = {name: convert(tensor) for name, tensor in [*stage.named_parameters(), *stage.named_buffers()]}
    inputs = [convert(tensor) for tensor in received]
    expected = tuple(convert(tensor) for tensor in targets)
    # A layer of torch's that holds its weights in a list too, as an LSTM, computes with the stage's own.
    held = [*state.values(), *stage.parameters(), *stage.buffers()]
    weights = {storage_id(tensor.untyped_storage()) for tensor in held}
    # Storages are held here, so that no other one takes the id of one that is gone.
    saved: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage_id(storage) not in weights:
            saved[storage_id(storage)] = storage
        return tensor

    device = received[0].device.type
    # Without a cache of weights in bf16, as Lightning trains.
    bf16 = torch.autocast(device, torch.bfloat16, enabled=autocast, cache_enabled=False)
    with (
        torch.enable_grad(),
        bf16,
        mode,
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
    ):
        results = functional_call(stage, state, tuple(inputs))
        if stage.last:
            task.loss(model_outputs(results), expected)
    own = {storage_id(tensor.untyped_storage()): tensor.untyped_storage().nbytes() for tensor in inputs}
    return SavedTensors(
        inputs=sum(own.values()),
        saved_inputs=sum(size for number, size in own.items() if number in saved),
        others=sum(storage.nbytes() for number, storage in saved.items() if number not in own),
    )


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)
