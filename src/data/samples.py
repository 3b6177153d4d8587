"""Define samples and the splits that a dataset's reader returns.

A sample is a tuple of inputs, which the model takes, and a tuple of targets, which the loss takes. All
samples of a dataset have the same shapes and types; what has no fixed shape is padded to a bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class Samples:
    """Some samples of a split.

    Attributes:
        inputs: one array [samples, ...] for each of the model's inputs. Images are uint8
            [samples, height, width, channels].
        targets: one array [samples, ...] for each target. Labels of classes are int64 [samples].
        damaged: "name: reason" for each sample that was left out because it can't be read.
    """

    inputs: tuple[np.ndarray, ...]
    targets: tuple[np.ndarray, ...]
    damaged: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.inputs[0])


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
    """

    train: SampleSource
    test: SampleSource
    names: tuple[str, ...]
