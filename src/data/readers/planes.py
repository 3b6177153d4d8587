"""Read images that are stored as planes of colour, in several files that are one split together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from src.data.readers.npz import MappedArray
from src.data.readers.pictures import resized
from src.data.samples import Samples, SampleSource


@dataclass(frozen=True)
class PlaneImages:
    """The samples of one file: square images whose planes of red, green and blue follow each other.

    Attributes:
        rows: uint8 [samples, bytes]; an image is the last 3 * side * side bytes of its row.
        labels: int64 [samples], from 0.
        side: height and width of the images as stored.
        size: height and width to which images are resized, or `None`.
    """

    rows: MappedArray
    labels: np.ndarray
    side: int
    size: int | None

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, start: int, stop: int) -> Samples:
        """Read the samples from `start` to before `stop`."""
        stored = self.rows.map()[start:stop, -3 * self.side * self.side :]
        planes = stored.reshape(-1, 3, self.side, self.side)
        images = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
        return Samples((resized(images, self.size),), (self.labels[start:stop],))


@dataclass(frozen=True)
class JoinedSource:
    """A split whose samples are those of its parts, one part after the other.

    Attributes:
        parts: sources of samples of the same shapes and types.
    """

    parts: tuple[SampleSource, ...]

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    def read(self, start: int, stop: int) -> Samples:
        """Read the samples from `start` to before `stop`, from each part that has some of them."""
        pieces = []
        for part in self.parts:
            if start < len(part) and stop > 0:
                pieces.append(part.read(max(start, 0), min(stop, len(part))))
            start, stop = start - len(part), stop - len(part)
        return join(pieces)


def join(pieces: list[Samples]) -> Samples:
    """Return the samples of all pieces, of which there is at least one."""
    if len(pieces) == 1:
        return pieces[0]
    return Samples(
        tuple(np.concatenate(arrays) for arrays in zip(*(piece.inputs for piece in pieces), strict=True)),
        tuple(np.concatenate(arrays) for arrays in zip(*(piece.targets for piece in pieces), strict=True)),
        tuple(line for piece in pieces for line in piece.damaged),
    )
