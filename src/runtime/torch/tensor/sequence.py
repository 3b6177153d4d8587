"""Split activations along the sequence wherever layers aren't split, so that no rank keeps all of them.

    own tokens ── all tokens ── split layers ── own tokens of the sum ── norm, dropout, shortcut ── ...

A sum over ranks is a reduce-scatter and an all-gather; between them each token is one rank's. What ranks
exchange stays the same but for the ends, and what they keep of norms, dropout and shortcuts is their own part
(Korthikanti 2022, https://arxiv.org/abs/2205.05198, section 4.2.2).
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional

from src.compat.torch import storage_id, version_of
from src.config import ConfigError
from src.runtime.torch.tensor import styles
from src.runtime.torch.tensor.group import TensorGroup

# Activations are [batch, tokens, features].
TOKENS, RANK = 1, 3
# What transformers call the activation that they give to a layer by name.
NAMED = "hidden_states"
IN_A_LIST = re.compile(r"(?P<blocks>.+?)\.\d+\..+")


_Exchange = Callable[[Tensor, int], Tensor]


class _Kept(NamedTuple):
    """This rank's part of a tensor that the backward pass needs, and the layout of the whole one."""

    part: Tensor
    version: int
    length: int
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int


class TokenParts:
    """The activation that runs through a list of blocks, of whose tokens each rank has a part."""

    def __init__(self, group: TensorGroup) -> None:
        self.group, self.length = group, 0
        # What layers that are split have been given last, and the part that it was gathered from.
        self._whole: tuple[weakref.ref[Tensor], int] | None = None
        self._part = torch.empty(0)
        self._again: tuple[Tensor, Tensor] | None = None
        self._saving: AbstractContextManager[None] | None = None

    def begin(self, whole: Tensor) -> Tensor:
        """Return this rank's part [batch, own tokens, features] of what goes into the first block."""
        self.length = whole.shape[TOKENS]
        self.group.region.begin(whole.device)
        return self._exchanged(whole, self._own, self._all)

    def enter(self, part: Tensor) -> Tensor:
        """Return all tokens for layers that are split, whose gradients are summed over the ranks.

        Of these the backward pass keeps the rank's part until `leave`, and gathers the others again.
        """
        whole = self._exchanged(part, self._all, self._back_to_part)
        self._whole, self._part = (weakref.ref(whole), version_of(whole)), part.detach()
        self._saving = saved_tensors_hooks(self._pack, self._unpack)
        self._saving.__enter__()
        return whole

    def leave(self) -> None:
        """Keep for the backward pass what is saved from here on, as after layers that are split."""
        if self._saving is not None:
            self._saving.__exit__(None, None, None)
        self._saving = self._whole = None

    def of_sum(self, whole: Tensor) -> Tensor:
        """Return this rank's tokens of the sum of all ranks' activations."""
        return self._exchanged(whole, self._own_of_sum, self._all)

    def end(self, part: Tensor) -> Tensor:
        """Return all tokens of what the last block has returned."""
        self.group.region.end()
        return self._exchanged(part, self._all, self._own)

    def _exchanged(self, activation: Tensor, there: _Exchange, back: _Exchange) -> Tensor:
        # The blocks may run again, on another number of tokens, before the backward pass.
        found: Tensor = _Exchanged.apply(activation, self.length, there, back)
        return found

    def _back_to_part(self, gradient: Tensor, length: int) -> Tensor:
        # The backward pass of all that took these tokens is done.
        self._again = None
        return self._own_of_sum(gradient, length)

    def _own(self, whole: Tensor, length: int) -> Tensor:
        return whole[:, self.group.span(length)].contiguous()

    def _own_of_sum(self, whole: Tensor, length: int) -> Tensor:
        span, each = self.group.span(length), -(-length // self.group.size)
        padded = functional.pad(whole, (0, 0, 0, each * self.group.size - length))
        parts = torch.stack(padded.chunk(self.group.size, TOKENS))
        return self.group.sum_of_parts(parts)[:, : span.stop - span.start]

    def _all(self, part: Tensor, length: int) -> Tensor:
        each = -(-length // self.group.size)
        # Collectives take tensors of one shape.
        parts = self.group.gather(functional.pad(part, (0, 0, 0, each - part.shape[TOKENS])).contiguous())
        # Without what pads them, and contiguous: a layer would keep a copy of its own.
        return torch.cat([own[:, : max(0, length - each * rank)] for rank, own in enumerate(parts)], TOKENS)

    def _pack(self, saved: Tensor) -> Any:
        whole = None if self._whole is None else self._whole[0]()
        if whole is None or self._whole is None or version_of(whole) != self._whole[1]:
            return saved
        if storage_id(saved.untyped_storage()) != storage_id(whole.untyped_storage()):
            return saved
        return _Kept(
            self._part, version_of(self._part), self.length,
            saved.shape, saved.stride(), int(saved.storage_offset()),
        )  # fmt: skip

    def _unpack(self, kept: Any) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        part = kept.part
        if version_of(part) != kept.version:
            raise RuntimeError(
                "what a layer that is split has taken was changed in place before its backward pass"
            )
        if self._again is None or self._again[0] is not part:
            self._again = part, self._all(part, kept.length)
        return self._again[1].as_strided(kept.shape, kept.stride, kept.offset)


def divide(model: nn.Module, words: Mapping[str, str], group: TensorGroup) -> None:
    """Have the blocks of a model whose layers are split take parts of the sequence, in place.

    Args:
        model: the model, whose layers are split.
        words: how each layer is split, by its path.
        group: the ranks.

    Raises:
        ConfigError: where no split layers are in blocks that a list has.
    """
    lists = blocks_of(words)
    if not lists:
        raise ConfigError(
            "strategy.sequence_parallel=true: takes blocks that follow each other in a list, as "
            "layers.0, layers.1, ..., and the plan splits no layers of such; choose false"
        )
    for path in lists:
        _divide(path, model.get_submodule(path), words, TokenParts(group))


def blocks_of(words: Mapping[str, str]) -> list[str]:
    """Return the paths of the lists whose blocks have pairs of split layers."""
    paired = (name for name, word in words.items() if word == styles.ROWWISE)
    matches = (IN_A_LIST.fullmatch(name) for name in paired)
    return list(dict.fromkeys(match["blocks"] for match in matches if match))


def _divide(path: str, blocks: nn.Module, words: Mapping[str, str], tokens: TokenParts) -> None:
    prefix = f"{path}."
    own = {name.removeprefix(prefix): word for name, word in words.items() if name.startswith(prefix)}
    entered = {_entered_at(name, own) for name, word in own.items() if word == styles.ROWWISE}
    inside = [part for part in entered if "." in part]
    for name, word in own.items():
        layer: Any = blocks.get_submodule(name)
        if word == styles.ROWWISE:
            styles.rowwise_to(layer, tokens.of_sum)
        elif word == styles.COLWISE:
            styles.colwise_of(layer)
            if not any(name.startswith(f"{part}.") for part in inside):
                inside.append(name)
    for part in inside:
        module = blocks.get_submodule(part)
        module.register_forward_pre_hook(_on_input(tokens.enter), with_kwargs=True)
        module.register_forward_hook(lambda *_: tokens.leave(), always_call=True)
    for parameter in _of_tokens(blocks, own, inside):
        styles.sum_gradient(parameter, tokens.group)
    children = list(blocks.children())
    children[0].register_forward_pre_hook(_on_input(tokens.begin), with_kwargs=True)
    children[-1].register_forward_hook(lambda _, __, output: _on_first(tokens.end, output))


def _entered_at(last: str, own: Mapping[str, str]) -> str:
    """Return the smallest module's path that has the layer `last` and one that is split by columns."""
    path = last
    while "." in path:
        path = path.rpartition(".")[0]
        if any(name.startswith(f"{path}.") for name, word in own.items() if word == styles.COLWISE):
            break
    return path


def _of_tokens(blocks: nn.Module, own: Mapping[str, str], entered: Sequence[str]) -> Iterator[nn.Parameter]:
    """Yield the parameters that each rank uses for its own tokens alone."""
    for name, parameter in blocks.named_parameters():
        layer, _, kind = name.rpartition(".")
        word = own.get(layer)
        if not parameter.requires_grad or word in (styles.COLWISE, styles.SUMMED):
            continue
        if word == styles.ROWWISE:
            if kind == "bias":
                yield parameter
        elif not any(name.startswith(f"{part}.") for part in entered):
            yield parameter


def _on_input(compute: Any) -> Any:
    """Return a hook that has a module take `compute` of its activation."""

    def hook(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if inputs:
            return (_on_first(compute, inputs), named)
        return inputs, {**named, NAMED: compute(named[NAMED])}

    return hook


def _on_first(compute: Any, values: Any) -> Any:
    """Return what a module takes or returns, with `compute` of its first tensor."""
    if isinstance(values, Tensor):
        if values.dim() != RANK:
            raise ConfigError(
                "strategy.sequence_parallel=true: takes blocks of activations [batch, tokens, features], and "
                f"one has {list(values.shape)}; choose false"
            )
        return compute(values)
    return type(values)((_on_first(compute, values[0]), *values[1:]))


class _Exchanged(Function):
    """An exchange of an activation, and the one of its gradient."""

    @staticmethod
    def forward(context: Any, activation: Tensor, length: int, there: _Exchange, back: _Exchange) -> Tensor:
        context.length, context.back = length, back
        return there(activation, length)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return context.back(gradient, context.length), None, None, None
