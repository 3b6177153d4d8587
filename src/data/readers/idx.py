"""Read the idx format, in which MNIST and its kin are published.

    byte 0-1   zero
    byte 2     type of the values; 0x08 is unsigned byte, the only one these datasets use
    byte 3     number of dimensions
    byte 4-    one big-endian uint32 a dimension, then the values, last dimension fastest

Source: "The MNIST database of handwritten digits", LeCun, Cortes, Burges, section "File formats".
"""

from __future__ import annotations

import struct
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from src.data.errors import DataError
from src.data.samples import ArraySource, Splits

UNSIGNED_BYTE = 0x08


def read(raw: Path, options: dict[str, Any]) -> Splits:
    """Read the four files of an MNIST-like dataset from the folder `raw`; images are mapped, not loaded.

    `options["names"]` names the classes; without it they are numbered.

    Raises:
        DataError: for a file that is not idx, is cut short, or disagrees with its partner.
    """
    train, test = _split(raw, "train"), _split(raw, "t10k")
    names = options.get("names") or [str(label) for label in range(int(train.targets[0].max(initial=0)) + 1)]
    return Splits(train, test, tuple(names))


def _split(raw: Path, prefix: str) -> ArraySource:
    images = read_array(raw / f"{prefix}-images-idx3-ubyte", dimensions=3)
    labels = read_array(raw / f"{prefix}-labels-idx1-ubyte", dimensions=1)
    if len(images) != len(labels):
        raise DataError(f"{raw}: {len(images)} {prefix} images but {len(labels)} {prefix} labels")
    return ArraySource((images[..., np.newaxis],), (labels.astype(np.int64),))


def read_array(path: Path, dimensions: int) -> np.ndarray:
    """Map one idx file as a read-only uint8 array with `dimensions` dimensions.

    Raises:
        DataError: for another format, a length that the header contradicts, or no samples.
    """
    with path.open("rb") as file:
        header = file.read(4 + 4 * dimensions)
    if header[:4] != bytes([0, 0, UNSIGNED_BYTE, dimensions]):
        raise DataError(
            f"{path} is no idx file of unsigned bytes in {dimensions} dimensions: it begins with "
            f"{header[:4].hex(' ') or 'nothing'}, not 00 00 08 {dimensions:02x}"
        )
    if len(header) < 4 + 4 * dimensions:
        raise DataError(f"{path} is cut short: it ends inside its header")
    shape = struct.unpack(f">{dimensions}I", header[4:])
    promised, present = len(header) + prod(shape), path.stat().st_size
    if present != promised:
        problem = "is cut short" if present < promised else "is too long"
        raise DataError(f"{path} {problem}: it has {present} bytes, its header promises {promised}")
    if prod(shape) == 0:
        raise DataError(f"{path} holds no samples: its shape is {shape}")
    return np.memmap(path, dtype=np.uint8, mode="r", offset=len(header), shape=shape)
