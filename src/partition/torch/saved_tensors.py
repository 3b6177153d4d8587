"""Find out what autograd saves for backward within a block, and of one micro-batch in a stage."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from src.compat.torch import storage_id
from src.partition.saved_tensors import SavedTensors
from src.partition.torch.simulation import State, Tensors, simulate
from src.partition.torch.stage import Stage
from src.tasks.torch.outputs import model_outputs
from src.tasks.torch.task import Task

# Each storage, by its id, stands with the place where it was first saved.
SavedStorages = dict[int, tuple[Any, torch.UntypedStorage]]


@contextlib.contextmanager
def saved_storages(
    module: nn.Module,
    others: Iterable[Tensor] = (),
    place: Callable[[], Any] = lambda: None,
) -> Iterator[SavedStorages]:
    """Collect the storages that autograd saves within the block, each once.

    They are held, so that no other one takes the id of one that is gone.

    Args:
        module: its parameters and buffers are left out.
        others: further tensors to leave out. A layer of torch's that holds its weights in a list too, as an
            LSTM, computes with the module's own even where these take their place.
        place: returns where a storage is saved.
    """
    own = [*module.parameters(), *module.buffers(), *others]
    left_out = {storage_id(tensor.untyped_storage()) for tensor in own}
    saved: SavedStorages = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage_id(storage) not in left_out:
            saved.setdefault(storage_id(storage), (place(), storage))
        # An operation's output would hold the operation, and that its output: a graph that nothing frees.
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield saved


def saved_by_stage(
    stage: Stage,
    received: Sequence[Tensor],
    task: Task,
    targets: Sequence[Tensor],
    *,
    precision: str = "fp32",
) -> SavedTensors:
    """Return the bytes that autograd saves of one micro-batch, the loss included in the last stage.

    Args:
        stage: the stage, on its device; it and its buffers stay as they are.
        received: what it receives: inputs or boundary tensors of one micro-batch; their values are not read
            unless a layer does so.
        task: gives the loss.
        targets: those of the micro-batch.
        precision: that of the training, `fp32` or `bf16`.
    """

    def run(state: State, given: Tensors) -> SavedTensors:
        inputs, expected = given[: len(received)], given[len(received) :]
        with saved_storages(stage, state.values()) as saved:
            results = functional_call(stage, state, inputs)
            if stage.last:
                task.loss(model_outputs(results), expected)
        own = {storage_id(tensor.untyped_storage()): tensor.untyped_storage().nbytes() for tensor in inputs}
        return SavedTensors(
            inputs=sum(own.values()),
            saved_inputs=sum(size for number, size in own.items() if number in saved),
            others=sum(storage.nbytes() for number, (_, storage) in saved.items() if number not in own),
        )

    return simulate(stage, [*received, *targets], run, precision=precision)
