"""Compute how long a device takes for matrix products and for what moves memory.

A product takes as long as its tiles, in whole waves over the processors, need at a share of the peak that
falls with a short inner dimension, or as its operands need to cross the memory: the greater of the two
(Williams et al. 2009, Roofline).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from src.predict.constants import Constants
from src.predict.sheets import GIGA, Device

TERA = 1e12
TILE = 128
BYTES = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2}


@dataclass(frozen=True)
class Work:
    """The work of one pass of one part of a model on a device.

    Attributes:
        products: seconds of each matrix product at the peak, in whole waves.
        inner: length of each one's inner dimension.
        moved: seconds of each one's operands at the memory's bandwidth.
        attention: seconds of flash attention at the peak.
        memory: seconds of all else at the memory's bandwidth.
        kernels: that are started.
    """

    products: np.ndarray
    inner: np.ndarray
    moved: np.ndarray
    attention: float
    memory: float
    kernels: int

    def seconds(self, constants: Constants) -> float:
        """Return how long it takes."""
        long = self.products * (1 + constants.gemm_inner / self.inner) / constants.gemm_efficiency
        busy = float(np.maximum(long, self.moved / constants.memory_efficiency).sum())
        busy += self.attention / constants.attention_efficiency + self.memory / constants.memory_efficiency
        return max(busy, self.kernels * constants.launch_seconds)


@dataclass(frozen=True)
class Roofline:
    """A device in one precision.

    Attributes:
        peak: FLOP/s. bandwidth: bytes/s. processors: of the device. size: bytes of an element.
    """

    peak: float
    bandwidth: float
    processors: int
    size: int

    @classmethod
    def of(cls, device: Device, precision: str) -> Roofline:
        """Return a device's; it must have units for the precision."""
        return cls(
            device.peak[precision] * TERA, device.bandwidth * GIGA, device.processors, BYTES[precision]
        )

    def work(
        self,
        products: list[tuple[float, float, float, float]],
        *,
        attention: float = 0.0,
        memory: float = 0.0,
        kernels: int = 0,
    ) -> Work:
        """Return the work of some products, (rows, inner dimension, columns, how many of them) each.

        Args:
            products: the products.
            attention: FLOPs of flash attention.
            memory: bytes that all else moves.
            kernels: how many are started.
        """
        shapes = [(max(1.0, m), max(1.0, k), max(1.0, n), count) for m, k, n, count in products]
        return Work(
            np.array([self._product(*shape) for shape in shapes]),
            np.array([k for _, k, _, _ in shapes]),
            np.array([c * self.size * (m * k + k * n + m * n) / self.bandwidth for m, k, n, c in shapes]),
            attention / self.peak,
            memory / self.bandwidth,
            kernels,
        )

    def _product(self, rows: float, inner: float, columns: float, count: float) -> float:
        """Return the seconds of `count` equal products at the peak, in whole waves of tiles."""
        tiles = count * math.ceil(rows / TILE) * math.ceil(columns / TILE)
        # The last wave of many is hardly ever waited for by itself: larger tiles, and the next kernel.
        waves = tiles / self.processors
        waves = math.ceil(waves) if waves < 1 else waves + (math.ceil(waves) - waves) / 2
        return waves * self.processors * 2 * TILE * TILE * inner / self.peak
