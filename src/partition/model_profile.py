"""Profile a model of any framework for a plan: operations, tensors at each boundary, and costs.

This is PipeDream's profile (Narayanan 2019, section 3.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from src.config.mistakes import ConfigError, nearest


@dataclass(frozen=True)
class LiveTensor:
    """A tensor that is live at a boundary; if it requires a gradient, that crosses the boundary, too."""

    name: str
    nbytes: int
    requires_grad: bool


@dataclass(frozen=True)
class ModelProfile:
    """The names of a model's operations, and the tensors that cross each boundary.

    Boundary b lies before operation b; the last boundary lies after all operations. Those of `preferred`, if
    there are any, are where its authors would cut it.
    """

    names: tuple[str, ...]
    crossing: tuple[tuple[LiveTensor, ...], ...]
    preferred: tuple[int, ...] = ()


@dataclass(frozen=True)
class Costs:
    """Costs of each operation for one micro-batch, as arrays [operations].

    Attributes:
        seconds: of the forward and the backward pass together.
        parameters: number of trained values.
        weight_bytes: bytes of the weights.
        kept_bytes: bytes that the forward pass keeps for the backward pass.
    """

    seconds: np.ndarray
    parameters: np.ndarray
    weight_bytes: np.ndarray
    kept_bytes: np.ndarray


@dataclass(frozen=True)
class Link:
    """A link between devices: a transfer takes `latency` seconds a tensor and `seconds_per_byte` a byte."""

    latency: float
    seconds_per_byte: float

    def seconds(self, sizes: list[int]) -> float:
        """Return the seconds that tensors of these sizes, in bytes, take."""
        return sum(self.latency + size * self.seconds_per_byte for size in sizes)


def boundary(names: Sequence[str], name: str) -> int:
    """Return the boundary before the operation called `name`, or before the first of the layer `name`.

    Raises:
        ConfigError: for a name that no operation has, or that can't begin a stage.
    """
    for place, operation in enumerate(names):
        if place and (operation == name or operation.startswith(f"{name}.")):
            return place
    if names[0] == name or names[0].startswith(f"{name}."):
        raise ConfigError(f"strategy.partition=[{name}]: the first stage begins there anyway")
    layers = {".".join(operation.split(".")[:depth]) for operation in names[1:] for depth in range(1, 9)}
    raise ConfigError(
        f"strategy.partition=[{name}]: no operation of the model is called that; "
        f"did you mean {nearest(name, sorted(layers))}?"
    )
