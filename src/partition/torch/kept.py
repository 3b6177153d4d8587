"""Find what modules keep of a step beside weights and buffers, which stages don't keep."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from src.models.torch.unchanged import unchanged
from src.partition.torch import user_lines
from src.partition.torch.user_lines import Line

# The containers of torch's own modules: weights, buffers and modules.
OWN = ("_parameters", "_buffers", "_modules")
Held = Mapping[int, object]


@dataclass(frozen=True)
class Kept:
    """A tensor, or a number, that a module keeps: its name in the model, and where it stands."""

    name: str
    container: Any
    place: Any

    @property
    def value(self) -> Any:
        """Return what stands there."""
        return self.container[self.place]

    def stir(self) -> None:
        """Put a random number in each number's place."""
        value = self.value
        self.container[self.place] = (
            torch.randn_like(value) if isinstance(value, Tensor) else float(torch.rand(()))
        )


def held(model: nn.Module) -> Held:
    """Return what modules hold, by its `id`."""
    return {id(each.value): each.value for each in _everything(model)}


def new(model: nn.Module, before: Held) -> list[Kept]:
    """Return the tensors of real numbers, and the numbers in containers, that weren't held `before`."""
    return [each for each in _everything(model) if id(each.value) not in before]


def constants(model: nn.Module, inputs: Sequence[Tensor], found: Mapping[str, Any]) -> set[str]:
    """Return the names among those that a step has kept whose values no data and no weights decide.

    They are a model's tables, made at its first step. The model takes a forward pass of other samples with
    other weights, and is left as it was.

    Args:
        model: as it is before the step.
        inputs: those of the step.
        found: what was kept, by name.
    """
    others = [torch.randn_like(each) if each.is_floating_point() else each.flip(0) for each in inputs]
    with unchanged(model), torch.no_grad():
        before = held(model)
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
        model(*others)
        again = {each.name: each.value for each in new(model, before)}
    return {name for name, value in found.items() if name in again and _same(value, again[name])}


def line_of(name: str, model: nn.Module, inputs: Sequence[Tensor]) -> Line | None:
    """Return the line of the model's code that keeps what is called `name`; leave the model as it was."""
    with unchanged(model), torch.no_grad():
        before = held(model)
        return user_lines.of_change(
            lambda: model(*inputs), lambda: any(each.name == name for each in new(model, before))
        )


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return bool(type(one) is type(other) and one == other)


def _everything(model: nn.Module) -> Iterator[Kept]:
    for path, module in model.named_modules():
        attributes = vars(module)
        for name, value in list(attributes.items()):
            if name in OWN:
                continue
            title = f"{path}.{name}".lstrip(".")
            if isinstance(value, Tensor) and value.is_floating_point():
                yield Kept(title, attributes, name)
            elif isinstance(value, dict | list | deque):
                for place in list(value) if isinstance(value, dict) else range(len(value)):
                    if isinstance(value[place], float) or (
                        isinstance(value[place], Tensor) and value[place].is_floating_point()
                    ):
                        yield Kept(f"{title}[{place!r}]", value, place)
