"""Compute how long kernels take on a device that is described by a data sheet.

Matrix products and convolutions take as long as their tiles, in waves over the device's processors, or as
their operands need to cross the memory (Williams et al. 2009, Roofline); a convolution is the product of its
patches and its filters (Chetlur et al. 2014, cuDNN, section 3). All else moves memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from src.config.mistakes import ConfigError
from src.measure.kernels import PRODUCT, SMALL_CONVOLUTION, Kernels
from src.predict.constants import Constants
from src.predict.roofline import TERA, TILE
from src.predict.sheets import GIGA, Device

# By how many rows, or columns, of a product kernels are there: what a tile has beyond them is lost.
QUANTUM = 64
# A product of few tiles divides its inner dimension, in parts of so many at least, among idle processors.
LEAST_PART = 512


def seconds(kernels: Kernels, device: Device, constants: Constants) -> np.ndarray:
    """Return how long each kernel takes [kernels], however long starting it does.

    Raises:
        ConfigError: for a precision for which the device has no units.
    """
    bandwidth = device.bandwidth * GIGA * constants.memory_efficiency
    peaks, kind, inner = _peaks(device, kernels), kernels.field("kind"), kernels.field("inner")
    computing = _work(kernels, device) * 2 / peaks.flops
    computing *= 1 + constants.gemm_inner / np.maximum(inner, 1.0)
    computing /= constants.gemm_efficiency * np.where(kind == PRODUCT, 1.0, constants.convolution_efficiency)
    # Kernels without tensor cores save multiplications (Lavin & Gray 2016).
    small = (kind == SMALL_CONVOLUTION) & ~peaks.by_tensor_cores
    computing *= np.where(small, constants.winograd, 1.0)
    relaid = np.where(peaks.by_tensor_cores, kernels.field("relaid"), 0.0) / bandwidth
    products = np.maximum(computing, kernels.field("moved") / bandwidth) + relaid
    attention = kernels.field("attention") / (peaks.flops * constants.attention_efficiency)
    # A processor has so many elements under way, of however many bytes.
    elements = kernels.field("elements") / (device.processors * constants.elements_per_second)
    moved = np.maximum(kernels.field("memory") / bandwidth, elements)
    found: np.ndarray = np.where(kernels.field("rows") > 0, products, 0.0) + np.maximum(attention, moved)
    return found


def _work(kernels: Kernels, device: Device) -> np.ndarray:
    """Return the multiplications of each kernel's products, with those that idle processors don't do."""
    rows, inner, columns = (kernels.field(name) for name in ("rows", "inner", "columns"))
    tiles = kernels.field("products") * np.ceil(rows / QUANTUM) * np.ceil(columns / QUANTUM)
    # A processor computes a tile of four quanta.
    tiles = tiles * (QUANTUM / TILE) ** 2
    parts = np.minimum(device.processors / np.maximum(tiles, 1.0), inner / LEAST_PART)
    parts = np.floor(np.maximum(parts, 1.0))
    waves = tiles * parts / device.processors
    # The last wave of many is hardly ever waited for by itself: larger tiles, and the next kernel.
    whole = np.ceil(waves)
    waves = np.where(waves < 1, whole, waves + (whole - waves) / 2)
    found: np.ndarray = waves * device.processors * TILE * TILE * inner / parts
    return found


@dataclass(frozen=True)
class _Peaks:
    """FLOP/s of each kernel's products, and whether tensor cores compute them."""

    flops: np.ndarray
    by_tensor_cores: np.ndarray


def _peaks(device: Device, kernels: Kernels) -> _Peaks:
    """Return the peaks of kernels as torch computes them by default.

    Products of fp32 matrices take no tensor cores, convolutions do where these have TF32.
    """
    products = (kernels.field("rows") > 0) | (kernels.field("attention") > 0)
    short = (kernels.field("size") < 4) & products
    peak = device.peak
    if "bf16" not in peak and short.any():
        raise ConfigError(f"precision=bf16: it has no units for it, but for {', '.join(peak)}")
    in_tf32 = (kernels.field("kind") != PRODUCT) & ("tf32" in peak) & ~short
    plain = np.where(in_tf32, peak.get("tf32", peak["fp32"]), peak["fp32"])
    flops = np.where(short, peak.get("bf16", peak["fp32"]), plain) * TERA
    return _Peaks(flops, short | in_tf32)
