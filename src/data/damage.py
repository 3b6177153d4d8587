"""Judge the samples of a dataset that can't be read: a few are left out with a warning, many are refused."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from src.data.errors import DataError
from src.data.shard_writer import Note

# The largest part of a split's samples that may be damaged.
MOST_DAMAGED = 0.01
# Warnings that are printed at most.
MOST_WARNINGS = 20


def refuse(dataset: str, split: str, samples: int, damaged: Sequence[str]) -> None:
    """Raise `DataError` where too many of a split's `samples` are among the `damaged` ones."""
    if len(damaged) > MOST_DAMAGED * samples:
        raise DataError(
            f"{dataset}: {len(damaged)} of {samples} {split} samples can't be read, "
            f"more than {MOST_DAMAGED:.0%}; the first is {damaged[0]}"
        )


def warn(dataset: str, notes: Mapping[str, Sequence[Note]]) -> None:
    """Print a warning for each sample that was left out of the splits, or for the first of many."""
    damaged = [each for split in notes.values() for note in split for each in note.damaged]
    lines = [f"{dataset}: warning: left out {each}" for each in damaged[:MOST_WARNINGS]]
    if len(damaged) > MOST_WARNINGS:
        lines.append(f"{dataset}: warning: left out {len(damaged) - MOST_WARNINGS} more damaged samples")
    for line in lines:
        print(" ".join(line.split()), file=sys.stderr, flush=True)
