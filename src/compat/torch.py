"""Wrap private parts of torch: BatchNorm, fake tensors, storages, versions, works, pytrees, DDP, FSDP."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import _create_work_from_future
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

__all__ = [
    "AllGather",
    "BatchNorm",
    "FakeTensor",
    "FakeTensorMode",
    "HigherOrderOperator",
    "ReduceScatter",
    "TensorsWithoutData",
    "as_in_ddp",
    "completed_work",
    "flop_counter",
    "gathered_parameters",
    "has_batch_statistics",
    "has_hooks",
    "parameter_hooks",
    "storage_id",
    "tree_leaves",
    "unnoticed_updates",
    "version_of",
    "with_tensors",
]


# Kernels that return other sizes on tensors without data than on others: an LSTM's workspace has none there.
UNLIKE_REAL = {torch.ops.aten.mkldnn_rnn_layer.default}


class TensorsWithoutData(FakeTensorMode):
    """A mode in which tensors have no data, and the sizes that they have with it.

    An operation of which that isn't so raises `NotImplementedError`.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in UNLIKE_REAL:
            raise NotImplementedError(f"{func} has other sizes without data")
        return super().__torch_dispatch__(func, types, args, kwargs)


def completed_work(result: list[Tensor]) -> dist.Work:
    """Return the work of a collective call that has been done already, with its result."""
    future: torch.futures.Future[list[Tensor]] = torch.futures.Future()
    future.set_result(result)
    work: dist.Work = _create_work_from_future(future)
    return work


@contextlib.contextmanager
def group_that_sends_nothing(ranks: int) -> Iterator[None]:
    """Have this process be the first one of a group of so many ranks, whose collective calls send nothing."""
    # It registers a backend, which no run is to be offered.
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def has_batch_statistics(model: nn.Module) -> bool:
    """Return whether some layer of `model` normalises by statistics of its batch."""
    return any(isinstance(layer, BatchNorm) for layer in model.modules())


def as_in_ddp(model: nn.Module | None) -> AbstractContextManager[None]:
    """Have torch's compiler divide graphs within the block as it does in a forward pass of `model` under DDP.

    It makes one graph of each bucket of gradients. Nothing changes where `model` isn't wrapped.
    """
    if not isinstance(model, DistributedDataParallel):
        return contextlib.nullcontext()
    return model._inside_ddp_forward()


def flop_counter() -> FlopCounterMode:
    """Return torch's counter of FLOPs, which counts attention on a CPU, too: torch's own counts 0 there."""

    def forward(*shapes: Any, **_: Any) -> int:
        return sdpa_flop_count(*shapes[:3])

    def backward(*shapes: Any, **_: Any) -> int:
        return sdpa_backward_flop_count(*shapes[:4])

    aten = torch.ops.aten
    counted = {
        aten._scaled_dot_product_flash_attention_for_cpu: forward,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: backward,
    }
    return FlopCounterMode(display=False, custom_mapping=counted)


def gathered_parameters(model: nn.Module) -> list[Tensor]:
    """Return what `fully_shard` gathers the parameters of a model into; between uses it has no memory."""
    found = list[Tensor]()
    for state in (module._get_fsdp_state() for module in model.modules() if isinstance(module, FSDPModule)):
        # torch 2.11 has one group a module.
        several = hasattr(state, "_fsdp_param_groups")
        for group in state._fsdp_param_groups if several else [state._fsdp_param_group]:
            found += [each for own in group.fsdp_params for each in own.all_gather_outputs] if group else []
    return found


def with_tensors(module: nn.Module, tensors: dict[str, Tensor]) -> AbstractContextManager[None]:
    """Have a module compute with other parameters and buffers, by name, within the block."""
    replaced: AbstractContextManager[None] = _reparametrize_module(module, tensors, tie_weights=True)
    return replaced


def storage_id(storage: torch.UntypedStorage) -> int:
    """Return a number that tensors in the same memory share, even those without data."""
    return storage._cdata


def version_of(tensor: Tensor) -> int:
    """Return how often a tensor was written into."""
    return tensor._version


def unnoticed_updates(tensors: Sequence[Tensor]) -> AbstractContextManager[None]:
    """Have autograd not notice that `tensors` are written to within the block.

    It refuses a backward pass that has saved one of them, though its memory has since been replaced.
    """
    return contextlib.nullcontext() if not tensors else _unsafe_preserve_version_counter(tuple(tensors))


def autograd_node(tensor: Tensor) -> Any:
    """Return the node of autograd's graph that has a tensor's gradient."""
    return torch.autograd.graph.get_gradient_edge(tensor).node


def reached_nodes(roots: Iterable[Any]) -> set[Any]:
    """Return the nodes of autograd's graph from `roots` on."""
    found = set(roots)
    left = list(found)
    while left:
        new = {node for node, _ in left.pop().next_functions if node is not None} - found
        found |= new
        left.extend(new)
    return found


def has_hooks(module: nn.Module) -> bool:
    """Return whether hooks are registered on a module, of forward or of backward passes."""
    return any(
        (
            module._forward_hooks,
            module._forward_pre_hooks,
            module._backward_hooks,
            module._backward_pre_hooks,
        )
    )


def parameter_hooks(parameter: nn.Parameter) -> tuple[list[Any], list[Any]]:
    """Return what is called with a parameter's gradient, and what with the parameter once it has that."""
    later = getattr(parameter, "_post_accumulate_grad_hooks", None)
    return [*(parameter._backward_hooks or {}).values()], [*(later or {}).values()]


def version(tensor: Tensor) -> int:
    """Return a number that changes whenever a tensor is written into."""
    return tensor._version
