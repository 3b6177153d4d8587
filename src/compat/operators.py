"""Wrap what torch knows of its operators, which is private: names, and what they read, write and make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from src.compat.torch import tree_leaves

__all__ = ["Given", "TorchDispatchMode", "given_to", "is_view", "made_by", "packet"]


class Given(NamedTuple):
    """A tensor that an operator is given: whether it reads it, and whether it writes into it."""

    tensor: Tensor
    read: bool
    written: bool


def packet(func: Any) -> str:
    """Return the name of an operator without that of its overload, as `aten::mm`."""
    return str(func.name()).partition(".")[0]


def given_to(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Given]:
    """Yield the tensors that an operator is called with, those in lists one by one."""
    for place, argument in enumerate(func._schema.arguments):
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        written = argument.alias_info is not None and argument.alias_info.is_write
        # What results are written into (`out=`) isn't read.
        read = not (written and argument.kwarg_only)
        for leaf in tree_leaves(value):
            if isinstance(leaf, Tensor):
                yield Given(leaf, read, written)


def made_by(func: Any, result: Any) -> Iterator[Tensor]:
    """Yield the tensors that an operator has made: what it returns and wasn't given."""
    returned = result if isinstance(result, tuple | list) and len(func._schema.returns) > 1 else [result]
    for each, value in zip(func._schema.returns, returned, strict=False):
        if each.alias_info is None:
            yield from (leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor))


def is_view(func: Any) -> bool:
    """Return whether an operator only returns other views of what it is given."""
    returned = [each.alias_info for each in func._schema.returns]
    return bool(returned) and all(each is not None and not each.is_write for each in returned)
