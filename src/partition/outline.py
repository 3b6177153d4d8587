"""A model as a plan sees it, in whatever framework it is written: its operations, what crosses each
boundary between them, and what each costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from src.rules import ConfigError, nearest


@dataclass(frozen=True)
class Crossing:
    """A tensor that is live at a boundary; its gradient comes back where there is one."""

    name: str
    nbytes: int
    requires_grad: bool


@dataclass(frozen=True)
class Outline:
    """Operations by name, and by boundary what crosses it: b lies before operation b, the last after all."""

    names: tuple[str, ...]
    crossing: tuple[tuple[Crossing, ...], ...]


@dataclass(frozen=True)
class Costs:
    """By operation, for one micro-batch: seconds of forward and backward, numbers of parameters, bytes."""

    seconds: np.ndarray
    parameters: np.ndarray
    weight_bytes: np.ndarray
    kept_bytes: np.ndarray


@dataclass(frozen=True)
class Link:
    """A transfer takes `latency` seconds a tensor and `seconds_per_byte` a byte."""

    latency: float
    seconds_per_byte: float

    def seconds(self, sizes: list[int]) -> float:
        """Time to send tensors of these sizes (bytes)."""
        return sum(self.latency + size * self.seconds_per_byte for size in sizes)


def boundary(names: Sequence[str], name: str) -> int:
    """The boundary before the operation of this name, or before the first one of this layer.

    Raises:
        ConfigError: for a name that no operation has, or that can't begin a stage.
    """
    for place, found in enumerate(names):
        if place and (found == name or found.startswith(f"{name}.")):
            return place
    if names[0] == name or names[0].startswith(f"{name}."):
        raise ConfigError(f"strategy.partition=[{name}]: the first stage begins there anyway")
    layers = {".".join(found.split(".")[:depth]) for found in names[1:] for depth in range(1, 9)}
    raise ConfigError(
        f"strategy.partition=[{name}]: no operation of the model is called that; "
        f"did you mean {nearest(name, sorted(layers))}?"
    )
