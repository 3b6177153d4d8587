"""Define samples and the splits that a dataset's reader returns.

A sample is a tuple of inputs, which the model takes, and a tuple of targets, which the loss takes. All
samples of a dataset have the same shapes and types; what has no fixed shape is padded to a bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np

KINDS = ("inputs", "targets")
# The types of tokens' numbers, which models take as int64.
TOKENS = (np.uint16, np.uint32)


@dataclass(frozen=True)
class Samples:
    """Some samples of a split.

    Attributes:
        inputs: one array [samples, ...] for each of the model's inputs. Images are uint8
            [samples, height, width, channels]; sequences of tokens are uint16 or uint32 [samples, length].
        targets: one array [samples, ...] for each target. Labels of classes are int64 [samples].
        damaged: "name: reason" for each sample that was left out because it can't be read.
    """

    inputs: tuple[np.ndarray, ...]
    targets: tuple[np.ndarray, ...]
    damaged: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.inputs[0])


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
    def has_tokens(self) -> bool:
        """Return whether the first input is a sequence of tokens, uint16 or uint32 [length]."""
        dtype, shape = self.inputs[0]
        return np.dtype(dtype) in TOKENS and len(shape) == 1 and 0 not in shape

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


class SampleSource(Protocol):
    """A split as a reader returns it: samples that are read, and maybe decoded, range by range.

    It can be pickled, because several processes read different ranges of it when a dataset is prepared.
    """

    def __len__(self) -> int:
        """Return the number of samples, damaged ones included."""
        ...

    def read(self, start: int, stop: int) -> Samples:
        """Read the samples from `start` to before `stop`."""
        ...


@dataclass(frozen=True)
class ArraySource:
    """A split whose samples are the rows of arrays, which may be memory maps.

    Attributes:
        inputs: as those of `Samples`.
        targets: as those of `Samples`.
    """

    inputs: tuple[np.ndarray, ...]
    targets: tuple[np.ndarray, ...]

    def __len__(self) -> int:
        return len(self.inputs[0])

    def read(self, start: int, stop: int) -> Samples:
        """Return the rows from `start` to before `stop` of each array."""
        rows = slice(start, stop)
        return Samples(tuple(a[rows] for a in self.inputs), tuple(a[rows] for a in self.targets))


@dataclass(frozen=True)
class Splits:
    """A dataset as a reader returns it.

    Attributes:
        train: the training samples.
        test: the test samples.
        names: one name for each class, in the order of the labels, or for each number that is predicted.
        warnings: what the user should know of the files, a few words each.
        vocabulary: how many tokens there are, where inputs are sequences of them.
    """

    train: SampleSource
    test: SampleSource
    names: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    vocabulary: int | None = None
