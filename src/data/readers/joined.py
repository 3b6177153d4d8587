"""Join the samples of several files into one split."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from src.data.samples import Samples, SampleSource


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
