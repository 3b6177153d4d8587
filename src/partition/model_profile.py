"""Profile a model of any framework for a plan: operations, tensors at each boundary, and costs.

This is PipeDream's profile (Narayanan 2019, section 3.1).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from src.config.mistakes import ConfigError, nearest

NO_OPERATION = "no operation of the model is called that"


@dataclass(frozen=True)
class LiveTensor:
    """A tensor that is live at a boundary; if it requires a gradient, that crosses the boundary, too."""

    name: str
    nbytes: int
    requires_grad: bool


@dataclass(frozen=True)
class ModelProfile:
    """The names of a model's operations, and the tensors that cross each boundary.

    Boundary b lies before operation b; the last boundary lies after all operations.

    Attributes:
        names: of the operations, in order.
        crossing: by boundary, the tensors that are live there.
        modules: by the path of a module of the model, the first operation that runs something of it; `None`
            where none does.
        preferred: the boundaries at which its authors would cut it, if they say so.
    """

    names: tuple[str, ...]
    crossing: tuple[tuple[LiveTensor, ...], ...]
    modules: Mapping[str, int | None] = field(default_factory=dict)
    preferred: tuple[int, ...] = ()


@dataclass(frozen=True)
class Costs:
    """Costs of each operation for one micro-batch, as arrays [operations].

    Attributes:
        seconds: of the forward and the backward pass together.
        parameters: number of trained values.
        weight_bytes: bytes of the weights.
        kept_bytes: bytes that the forward pass keeps for the backward pass.
        forward_seconds: of the forward pass; `None` where that isn't measured apart.
        input_backward_seconds: of the backward pass for inputs alone, likewise.
    """

    seconds: np.ndarray
    parameters: np.ndarray
    weight_bytes: np.ndarray
    kept_bytes: np.ndarray
    forward_seconds: np.ndarray | None = None
    input_backward_seconds: np.ndarray | None = None

    def passes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the seconds of forward, input- and weight-backward passes, [operations] each.

        What isn't measured apart is taken for a third of all, or for a half of the backward pass.
        """
        forward = self.seconds / 3 if self.forward_seconds is None else self.forward_seconds
        backward = self.seconds - forward
        if self.input_backward_seconds is None:
            return forward, backward / 2, backward / 2
        # Two measurements of a short pass may be in the wrong order.
        for_inputs = np.minimum(self.input_backward_seconds, backward)
        return forward, for_inputs, backward - for_inputs


@dataclass(frozen=True)
class Link:
    """A link between devices: a transfer takes `latency` seconds a tensor and `seconds_per_byte` a byte."""

    latency: float
    seconds_per_byte: float

    def seconds(self, sizes: list[int]) -> float:
        """Return the seconds that tensors of these sizes, in bytes, take."""
        return sum(self.latency + size * self.seconds_per_byte for size in sizes)


def boundary(names: Sequence[str], name: str, modules: Mapping[str, int | None] | None = None) -> int:
    """Return the boundary before the operation called `name`, or before the first of the layer `name`.

    `names` and `modules` are those of a `ModelProfile`.

    Raises:
        ConfigError: for a name that no operation has, or that can't begin a stage.
    """
    for place, operation in enumerate(names):
        if place and (operation == name or operation.startswith(f"{name}.")):
            return place
    key, modules = f"strategy.partition=[{name}]", modules or {}
    around = modules.get(name)
    if around == 0 or names[0] == name or names[0].startswith(f"{name}."):
        raise ConfigError(f"{key}: the first stage begins there anyway")
    if around is not None:
        after = f"the next one is {names[around + 1]}" if around + 1 < len(names) else "it is the last one"
        raise ConfigError(
            f"{key}: {name} is within {names[around]}, an operation that stays whole, and {after}; "
            "strategy.tied=reduce allows cuts between layers that share a weight"
        )
    missing = "in training the model runs no operation by calling it" if name in modules else NO_OPERATION
    raise ConfigError(f"{key}: {missing}; did you mean {_nearest_layer(names, name)}?")


def named(operations: Sequence[str], modules: Mapping[str, int | None], names: Sequence[str]) -> list[int]:
    """Return the boundaries before these operations or layers; the first two are those of a profile.

    Raises:
        ConfigError: for a name that can't begin a stage, or names that aren't in order.
    """
    boundaries = [boundary(operations, name, modules) for name in names]
    if any(b <= a for a, b in itertools.pairwise(boundaries)):
        raise ConfigError(
            f"strategy.partition=[{','.join(names)}]: name the stages' first operations in order"
        )
    return boundaries


def _nearest_layer(names: Sequence[str], name: str) -> str:
    """Return the operation or layer that can begin a stage and that is nearest to `name`.

    A layer beside it is nearer than any other; among numbered ones it is the nearest number.
    """
    parts = [operation.split(".") for operation in names[1:]]
    layers = {".".join(each[:depth]) for each in parts for depth in range(1, len(each) + 1)}
    parent, _, last = name.rpartition(".")
    beside = [layer for layer in layers if layer.rpartition(".")[0] == parent] if parent else []
    numbered = [layer for layer in beside if layer.rpartition(".")[2].isdigit()]
    if last.isdigit() and numbered:
        return min(numbered, key=lambda layer: (abs(int(layer.rpartition(".")[2]) - int(last)), layer))
    return nearest(name, sorted(beside or layers))


def as_numbers(costs: Costs, link: Link) -> dict[str, Any]:
    """Turn measured costs into plain numbers, which rank 0 sends to the other ranks."""
    known = {key: value.tolist() for key, value in asdict(costs).items() if value is not None}
    return {"costs": known, "link": asdict(link)}


def from_numbers(numbers: Mapping[str, Any]) -> tuple[Costs, Link]:
    """Turn the result of `as_numbers` back into costs and a link."""
    return Costs(**{key: np.array(value) for key, value in numbers["costs"].items()}), Link(**numbers["link"])
