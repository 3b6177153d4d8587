"""Say what all samples of a dataset have in common: the types and shapes of their arrays."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from src.data.samples import Samples

KINDS = ("inputs", "targets")


@dataclass(frozen=True)
class Layout:
    """The types and shapes of a sample's arrays.

    Attributes:
        inputs: (numpy's name of the type, shape) of each input.
        targets: the same of each target.
    """

    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    targets: tuple[tuple[str, tuple[int, ...]], ...]

    @classmethod
    def of(cls, samples: Samples) -> Layout:
        """Return the layout of samples."""
        inputs, targets = (
            tuple((array.dtype.str, array.shape[1:]) for array in getattr(samples, kind)) for kind in KINDS
        )
        return cls(inputs, targets)

    @property
    def sample_bytes(self) -> int:
        """Return the number of bytes that a sample takes."""
        return sum(np.dtype(dtype).itemsize * prod(shape) for dtype, shape in (*self.inputs, *self.targets))

    @property
    def has_images(self) -> bool:
        """Return whether the first input is an image, uint8 [height, width, channels]."""
        dtype, shape = self.inputs[0]
        return np.dtype(dtype) == np.uint8 and len(shape) == 3 and 0 not in shape

    @property
    def has_labels(self) -> bool:
        """Return whether the first target is the number of a class, int64 []."""
        return bool(self.targets) and (np.dtype(self.targets[0][0]), self.targets[0][1]) == (np.int64, ())

    def described(self, kind: str) -> list[dict[str, Any]]:
        """Return type and shape of each of the `inputs` or `targets`, for meta.json."""
        return [{"dtype": np.dtype(dtype).name, "shape": list(shape)} for dtype, shape in getattr(self, kind)]

    def __str__(self) -> str:
        """Return the layout for messages: `uint8 [28, 28, 1] -> int64 []`."""
        return " -> ".join(
            ", ".join(f"{each['dtype']} {each['shape']}" for each in self.described(kind)) for kind in KINDS
        )
