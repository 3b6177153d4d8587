"""A GPU for torch to rehearse on: tensors without data, on `meta`, with the rules that CUDA has for devices.

Whatever computes with them runs, in shape and type alone. As on a GPU, an operation that mixes them with the
CPU's tensors raises, but for copies and numbers [] of the CPU that are only read.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

DEVICE = torch.device("meta", 0)
COPIES = ("aten::copy_", "aten::_to_copy")
# Operations that take indices on the CPU for tensors on a GPU.
INDEXING = ("aten::index", "aten::index_put_", "aten::index_put")
# Operations that take no number of the CPU between tensors of a GPU.
JOINING = ("aten::cat", "aten::stack")
# The backends that send and receive no tensors of a GPU.
HOST_ALONE = ("c10d::send", "c10d::recv_")


class Mark(torch.cpu.Event):
    """An event in a queue; what it marks is done at once."""


class Queue(torch.cpu.Stream):
    """A stream of a GPU, on which nothing waits."""

    def __init__(self, **_: Any) -> None:
        super().__init__()

    def record_event(self, event: Any = None) -> Mark:
        return event or Mark()

    def wait_event(self, event: Any) -> None: ...
    def wait_stream(self, stream: Any) -> None: ...


class Kind:
    """What torch asks of a kind of devices by its name, as of `torch.cuda`: `torch.meta` isn't there.

    There is one device, as a rank sees of its host's.
    """

    Stream = Queue
    Event = Mark

    def __init__(self) -> None:
        self.initialized = False

    def init(self) -> None:
        self.initialized = True

    def is_initialized(self) -> bool:
        return self.initialized

    def set_device(self, device: torch.device | int) -> None:
        if (number := device if isinstance(device, int) else device.index) != 0:
            raise RuntimeError(f"CUDA error: invalid device ordinal: {number}")

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def current_stream(self, *_: Any) -> Queue:
        return Queue()

    def stream(self, _: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


# One for all tests: torch keeps what it has found by a kind's name.
KIND = Kind()


class AsGPU(TorchDispatchMode):
    """Within the block `meta` is a GPU, from which come back what was copied there, and else ones.

    `host_alone`: whether ranks send and receive from the host's memory alone, as gloo does.
    """

    def __init__(self, *, host_alone: bool = False) -> None:
        super().__init__()
        self._host_alone = host_alone
        # By a tensor on the GPU, that of the host of which it is a copy.
        self._originals = WeakTensorKeyDictionary()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, name = kwargs or {}, func._schema.name
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        here = [tensor for tensor in tensors if tensor.device.type == "cpu"]
        if len(here) == len(tensors):
            result = func(*args, **kwargs)
            if name == "aten::_to_copy" and result.device.type == "meta":
                self._originals[result] = args[0]
            return result
        if self._host_alone and name in HOST_ALONE:
            raise RuntimeError(f"{name}: this backend reads the host's memory alone")
        if name == "aten::_local_scalar_dense":
            return self._on_host(args[0]).item()
        if name == "aten::_to_copy" and kwargs.get("device", DEVICE).type == "cpu":
            return self._on_host(args[0]).to(kwargs.get("dtype"))
        if name == "aten::copy_" and args[0].device.type == "cpu":
            return args[0].copy_(self._on_host(args[1]))
        if here and name not in COPIES:
            self._check(func, name, args, here)
        return func(*args, **kwargs)

    def _on_host(self, tensor: Tensor) -> Tensor:
        return self._originals.get(tensor, torch.ones_like(tensor, device="cpu")).clone()

    def _check(self, func: Any, name: str, args: tuple[Any, ...], here: list[Tensor]) -> None:
        """Raise where CUDA would."""
        changed = [
            value
            for argument, value in zip(func._schema.arguments, args, strict=False)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        into_host = any(
            leaf.device.type == "cpu" for leaf in tree_leaves(changed) if isinstance(leaf, Tensor)
        )
        arrays = name not in INDEXING and any(tensor.dim() for tensor in here)
        if into_host or arrays or name in JOINING:
            raise RuntimeError(f"{name}: expected all tensors to be on the same device, found cpu and a GPU")
