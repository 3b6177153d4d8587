"""Describe what operations of a step ask of a device, and what happens between them, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

# A product is one of matrices, a convolution, or a convolution of 3x3 that steps by one pixel.
PRODUCT, CONVOLUTION, SMALL_CONVOLUTION = 0, 1, 2
# What isn't an exchange: the wait for one, a gradient that is there for its bucket, the update's beginning.
WAIT, GRADIENT, UPDATE = "wait", "gradient", "update"
# An exchange of which nobody knows what it takes.
UNKNOWN = "unknown"


class Kernel(NamedTuple):
    """An operation's demands on a device.

    Attributes:
        rows, inner, columns: of a matrix product; a convolution is that of its patches and its filters. Zeros
            for what is no product.
        products: how many equal ones there are.
        moved: bytes of the products' operands.
        attention: FLOPs of fused attention.
        memory: bytes that all else moves.
        elements: of these, whatever bytes they have.
        size: bytes of an element of the products.
        kind: of the products.
        relaid: bytes that laying a convolution's tensors out channels last moves, where they aren't.
        launches: how many kernels are started.
    """

    rows: float = 0.0
    inner: float = 0.0
    columns: float = 0.0
    products: float = 0.0
    moved: float = 0.0
    attention: float = 0.0
    memory: float = 0.0
    size: float = 4.0
    kind: float = PRODUCT
    relaid: float = 0.0
    launches: float = 1.0
    elements: float = 0.0


FIELDS = Kernel._fields


@dataclass(frozen=True)
class Kernels:
    """Kernels in the order in which they are started, each a row of `values` [kernels, fields]."""

    values: np.ndarray

    @classmethod
    def of(cls, kernels: Sequence[Kernel]) -> Kernels:
        """Return them as an array."""
        return cls(np.array(kernels, dtype=float).reshape(-1, len(FIELDS)))

    def field(self, name: str) -> np.ndarray:
        """Return one of `FIELDS` of all kernels [kernels]."""
        found: np.ndarray = self.values[:, FIELDS.index(name)]
        return found


class Mark(NamedTuple):
    """An event between two kernels of a step.

    Attributes:
        place: how many kernels of the step come before it.
        kind: of an exchange that is handed over, as `all_reduce`; `wait`, `gradient` or `update`.
        size: bytes of the whole tensor, of which ranks may have parts.
        ranks: that take part.
        stride: how far apart their numbers are.
        call: the number of the exchange, to which a wait refers.
    """

    place: int
    kind: str
    size: float = 0.0
    ranks: int = 1
    stride: int = 1
    call: int = 0


@dataclass(frozen=True)
class Trace:
    """The kernels of a rank's step, and what happens between them, in order."""

    kernels: Kernels
    marks: tuple[Mark, ...]
