"""Note what the operations of a step ask of a device, on tensors without data, and what is exchanged."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from src.compat.collectives import Collective, collective_of
from src.compat.operators import Given, TorchDispatchMode, given_to, is_view, made_by, packet
from src.compat.torch import TensorsWithoutData, storage_id
from src.measure.kernels import (
    CONVOLUTION,
    GRADIENT,
    PRODUCT,
    SMALL_CONVOLUTION,
    UPDATE,
    WAIT,
    Kernel,
    Kernels,
    Mark,
    Trace,
)

# They start no kernel, though they return new tensors, or what is none.
WITHOUT_KERNEL = {
    "aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided",
    "aten::_local_scalar_dense", "aten::is_same_size", "aten::_unsafe_view", "aten::detach",
    "aten::resize_", "aten::lift_fresh", "aten::set_", "aten::record_stream",
}  # fmt: skip
# They read as much of a table as they return.
LOOK_UP = {
    "aten::embedding", "aten::gather", "aten::index", "aten::index_select", "aten::nll_loss_forward",
    "aten::nll_loss2d_forward",
}  # fmt: skip
# They read nothing of what they are given, or of what they write into.
WRITE_ONLY = {
    "aten::zeros_like", "aten::ones_like", "aten::full_like", "aten::new_zeros", "aten::new_ones",
    "aten::new_full", "aten::zero_", "aten::fill_", "aten::_foreach_zero_", "aten::nll_loss_backward",
    "aten::nll_loss2d_backward",
}  # fmt: skip
# They read as much as they write.
COPIES = {"aten::copy_", "aten::_foreach_copy_"}
# They read some of their tensors once more than they are given them: for statistics, and then for each value.
READ_AGAIN = {
    "aten::native_batch_norm": 1.5, "aten::_native_batch_norm_legit": 1.5, "aten::cudnn_batch_norm": 1.5,
    "aten::_batch_norm_with_update": 1.5, "aten::native_batch_norm_backward": 5 / 3,
    "aten::batch_norm_backward": 5 / 3, "aten::native_group_norm": 1.5,
    "aten::native_group_norm_backward": 5 / 3,
}  # fmt: skip
# One launch takes so many tensors of those that an optimizer updates together.
TENSORS_OF_A_LAUNCH = 48
# A backward pass of fused attention computes scores again (Dao 2022, section 3.1): five products, not two.
ATTENTION_BACKWARD = 2.5


class KernelCounter(TorchDispatchMode):
    """A mode that notes kernels and exchanges of all operations on its tensors without data.

    It is entered before modes that see tensors whose parts lie on several ranks as wholes.
    """

    def __init__(self, fake: TensorsWithoutData, *, waits: bool) -> None:
        """Note what tensors of `fake` go through; `waits` says whether sums are waited for at once."""
        super().__init__()
        self._fake, self._waits = fake, waits
        self._kernels: list[Kernel] = []
        self._marks: list[Mark] = []
        self._calls = 0
        # Calls that gather shards nobody has needed yet, by the memory that they gather into; and whether
        # the next gather is one of shards.
        self._gathers: dict[int, int] = {}
        self._of_shards = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(each, DTensor) for each in types):
            # What a rank does with its part comes next.
            return NotImplemented
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func.namespace != "prim":
            given, made = list(given_to(func, args, kwargs)), list(made_by(func, result))
            tensors = [*(each.tensor for each in given), *made]
            if any(getattr(each, "fake_mode", None) is self._fake for each in tensors):
                exchange = collective_of(func, args, kwargs, result)
                if exchange is not None:
                    self._exchange(exchange, args)
                else:
                    self._compute(func, args, given, made)
        return result

    def begin(self) -> None:
        """Forget what was noted so far."""
        self._kernels.clear()
        self._marks.clear()
        self._gathers.clear()
        self._calls, self._of_shards = 0, False

    def gradient(self, size: int) -> None:
        """Note that a gradient of `size` bytes is there for its bucket."""
        self._marks.append(Mark(len(self._kernels), GRADIENT, size))

    def update(self) -> None:
        """Note that the update begins."""
        self._marks.append(Mark(len(self._kernels), UPDATE))

    def place(self) -> int:
        """Return how many kernels were noted so far."""
        return len(self._kernels)

    def trace(self) -> Trace:
        """Return what was noted."""
        return Trace(Kernels.of(self._kernels), tuple(self._marks))

    def _compute(
        self, func: Any, args: Sequence[Any], given: Sequence[Given], made: Sequence[Tensor]
    ) -> None:
        """Note an operation's kernels."""
        name = packet(func)
        if name == "fsdp::all_gather_copy_in":
            self._of_shards = True
            # Shards are copied into the rank's part of what is gathered.
            self._kernels.append(_moved(args[0], 2))
            return
        if name == "fsdp::split_with_sizes_copy":
            call = self._gathers.pop(storage_id(args[0].untyped_storage()), None)
            if call is not None:
                self._marks.append(Mark(len(self._kernels), WAIT, call=call))
        if name in WITHOUT_KERNEL or is_view(func) or not (made or any(each.written for each in given)):
            return
        maker = PRODUCTS.get(name)
        self._kernels += [_moving(name, given, made)] if maker is None else maker(args, made)

    def _exchange(self, exchange: Collective, args: Sequence[Any]) -> None:
        """Note an exchange, and the wait for it where it is waited for at once."""
        of_shards, self._of_shards = self._of_shards, False
        if exchange.ranks == 1:
            return
        self._calls += 1
        place, call = len(self._kernels), self._calls
        self._marks.append(Mark(place, exchange.kind, exchange.size, exchange.ranks, exchange.stride, call))
        gathers = exchange.kind == "all_gather"
        if gathers and of_shards:
            self._gathers[storage_id(args[0].untyped_storage())] = call
        elif gathers or self._waits:
            self._marks.append(Mark(place, WAIT, call=call))


def _bytes(tensor: Tensor) -> float:
    """Return the bytes that a tensor has in memory; one that is expanded has fewer than elements."""
    size = tensor.numel() * tensor.element_size()
    return float(min(size, tensor.untyped_storage().nbytes()) if tensor.layout is torch.strided else size)


def _moving(name: str, given: Sequence[Given], made: Sequence[Tensor]) -> Kernel:
    """Return the kernel of an operation that moves memory."""
    written = [*made, *(each.tensor for each in given if each.written)]
    unread = name in WRITE_ONLY
    if name in COPIES or name in LOOK_UP:
        read = written
    else:
        # A tensor that is given twice is read once.
        read = [*{id(each.tensor): each.tensor for each in given if each.read and not unread}.values()]
    together = max(1, len(made), sum(each.written for each in given)) if "_foreach" in name else 1
    launches = math.ceil(together / TENSORS_OF_A_LAUNCH)
    return _moved([*read, *written], READ_AGAIN.get(name, 1.0))._replace(launches=launches)


def _moved(tensors: Sequence[Tensor], times: float = 1.0) -> Kernel:
    """Return the kernel that moves tensors so many times."""
    sizes = [(_bytes(each), each.element_size()) for each in tensors]
    return Kernel(
        memory=times * sum(size for size, _ in sizes), elements=times * sum(size / one for size, one in sizes)
    )


def _product(
    rows: float, inner: float, columns: float, tensors: Sequence[Tensor], count: float = 1
) -> list[Kernel]:
    moved, size = sum(map(_bytes, tensors)), tensors[0].element_size()
    return [Kernel(rows, inner, columns, count, moved, size=size, kind=PRODUCT)]


def _mm(a: Tensor, b: Tensor, out: Tensor) -> list[Kernel]:
    return _product(a.shape[0], a.shape[1], b.shape[1], [a, b, out])


def _bmm(a: Tensor, b: Tensor, out: Tensor) -> list[Kernel]:
    return _product(a.shape[1], a.shape[2], b.shape[2], [a, b, out], a.shape[0])


def _convolution(args: Sequence[Any], made: Sequence[Tensor]) -> list[Kernel]:
    """Return the kernel of a convolution (input, weight, bias, stride, ..., transposed, ..., groups)."""
    return [_patches(args[0], args[1], made[0], args)[0]]


def _convolution_backward(args: Sequence[Any], made: Sequence[Tensor]) -> list[Kernel]:
    """Return the kernels of a convolution's gradients (gradient, input, weight, ..., which are wanted)."""
    gradient, inputs, weight = args[:3]
    # Stride and what follows it are one place further on than in the forward pass.
    _, for_inputs, for_weights = _patches(inputs, weight, gradient, args[1:])
    wanted = args[10]
    kernels = [each for each, is_wanted in zip((for_inputs, for_weights), wanted, strict=False) if is_wanted]
    return [*kernels, _moved([gradient])] if wanted[2] else kernels


def _patches(
    inputs: Tensor, weight: Tensor, out: Tensor, args: Sequence[Any]
) -> tuple[Kernel, Kernel, Kernel]:
    """Return the kernels of a convolution's forward pass and of its gradients for inputs and for weights."""
    stride, transposed, groups = args[3], args[6], args[8]
    moved = sum(map(_bytes, (inputs, weight, out)))
    window = math.prod(weight.shape[2:])
    first, second = weight.shape[0] // groups, weight.shape[1]
    if groups > 1 and min(first, second) == 1:
        # Each channel by itself: there is no product to speak of.
        alone = _moved([inputs, weight, out])
        return alone, alone, alone
    # Forward and backward passes of a transposed one change places.
    wide, narrow = (inputs, out) if not transposed else (out, inputs)
    before, after = (each.shape[0] * math.prod(each.shape[2:]) for each in (wide, narrow))
    usual = window == 9 and weight.dim() == 4 and all(step == 1 for step in stride)
    laid_out = inputs.dim() != 4 or inputs.is_contiguous(memory_format=torch.channels_last)

    def kernel(rows: float, inner: float, columns: float) -> Kernel:
        return Kernel(
            rows,
            inner,
            columns,
            groups,
            moved,
            size=inputs.element_size(),
            kind=SMALL_CONVOLUTION if usual else CONVOLUTION,
            relaid=0.0 if laid_out else 2 * (_bytes(inputs) + _bytes(out)),
        )

    down = kernel(after, second * window, first)
    # Where steps are longer than a pixel, most products of a patch are with pixels that aren't there.
    up = kernel(before, first * window * min(1.0, after / before), second)
    for_weights = kernel(first, after, second * window)
    return (down, up, for_weights) if not transposed else (up, down, for_weights)


def _attention(args: Sequence[Any], made: Sequence[Tensor]) -> list[Kernel]:
    """Return the kernel of fused attention (query, key, value, ..., whether it is causal)."""
    return _fused(args[:3], args[3:], 1.0, [*args[:3], made[0]])


def _attention_backward(args: Sequence[Any], made: Sequence[Tensor]) -> list[Kernel]:
    """Return the kernel of fused attention's gradients (gradient, query, key, value, ...)."""
    return _fused(args[1:4], args[4:], ATTENTION_BACKWARD, [*args[:4], *made])


def _fused(
    heads: Sequence[Tensor], options: Sequence[Any], times: float, moved: Sequence[Tensor]
) -> list[Kernel]:
    """Return the kernel of fused attention of queries, keys and values [batch, heads, tokens, features]."""
    query, key, value = heads
    flops = 2 * math.prod(query.shape[:3]) * key.shape[2] * (query.shape[3] + value.shape[3]) * times
    causal = any(each is True for each in options)
    memory = sum(map(_bytes, moved))
    return [Kernel(attention=flops / 2 if causal else flops, memory=memory, size=query.element_size())]


Maker = Callable[[Sequence[Any], Sequence[Tensor]], list[Kernel]]
PRODUCTS: dict[str, Maker] = {
    "aten::mm": lambda args, made: _mm(args[0], args[1], made[0]),
    "aten::addmm": lambda args, made: _mm(args[1], args[2], made[0]),
    "aten::bmm": lambda args, made: _bmm(args[0], args[1], made[0]),
    "aten::baddbmm": lambda args, made: _bmm(args[1], args[2], made[0]),
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
}
