"""Write one shard of a prepared dataset: read its samples, check them, keep them in files with a note.

A shard is finished once its note is there, so that a preparation which was cut short goes on after it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from src.data.arrays import file_name
from src.data.errors import DataError
from src.data.own_code import own_errors
from src.data.samples import KINDS, Layout, Samples, SampleSource, Splits
from src.run.tables import write_text

# Bytes of samples that a process holds at once.
CHUNK_BYTES = 1 << 24


@dataclass(frozen=True)
class Shard:
    """A run of a split's samples, damaged ones included.

    Attributes:
        split: `train` or `test`.
        number: its place among the split's shards.
        start: its first sample.
        stop: the sample after its last one.
    """

    split: str
    number: int
    start: int
    stop: int


@dataclass(frozen=True)
class Note:
    """A record of a finished shard.

    Attributes:
        shard: which one.
        rows: number of samples that could be read.
        damaged: "name: reason" for each of the others.
        pixels: of training images, how many pixels have each of the 256 values, [channels][256].
        labels: of training labels, how many samples each class has, [classes].
    """

    shard: Shard
    rows: int
    damaged: Sequence[str]
    pixels: Sequence[Sequence[int]]
    labels: Sequence[int]


@dataclass(frozen=True)
class ShardWriter:
    """A callable that writes shards; it can be pickled where the splits can.

    Attributes:
        dataset: the dataset's name, for messages.
        reader: import path of its reader, for messages.
        splits: the samples.
        layout: what all samples have in common.
        folder: where shards are kept.
        notes: where their notes are kept.
    """

    dataset: str
    reader: str
    splits: Splits
    layout: Layout
    folder: Path
    notes: Path

    def __call__(self, shard: Shard) -> Note:
        """Write a shard and its note, and return the note.

        Raises:
            DataError: for samples that break what `Splits` promises, and an error of the reader.
            OSError: for a full disk.
        """
        channels = self.layout.inputs[0][1][2] if self.layout.has_images and shard.split == "train" else 0
        pixels = np.zeros((channels, 256), dtype=np.int64)
        classes = len(self.splits.names) if self.layout.has_labels and shard.split == "train" else 0
        labels = np.zeros(classes, dtype=np.int64)
        rows = 0
        damaged: list[str] = []
        with ExitStack() as stack:
            files: list[tuple[BinaryIO, str, tuple[int, ...]]] = []
            forms = (*self.layout.inputs, *self.layout.targets)
            for name, form in zip(self.files_of(shard), forms, strict=True):
                files.append((stack.enter_context((self.folder / name).open("wb")), *form))
                _write_header(*files[-1], shard.stop - shard.start)
            for samples in self._chunks(shard):
                damaged += samples.damaged
                rows += len(samples)
                if not len(samples):
                    continue
                self._check(samples, shard.split)
                for channel, count in enumerate(pixels):
                    count += np.bincount(samples.inputs[0][..., channel].ravel(), minlength=256)
                if classes:
                    labels += np.bincount(samples.targets[0], minlength=classes)
                arrays = (*samples.inputs, *samples.targets)
                for (file, _, _), array in zip(files, arrays, strict=True):
                    # Not np.save, whose errors lack the number by which a full disk is recognised.
                    file.write(np.ascontiguousarray(array).data)
            for file, dtype, shape in files:
                # numpy leaves room in the header, so that it has the same length for fewer rows.
                file.seek(0)
                _write_header(file, dtype, shape, rows)
        note = Note(shard, rows, damaged, pixels.tolist(), labels.tolist())
        write_text(self._note_path(shard), json.dumps(asdict(note)))
        return note

    def finished(self, shard: Shard) -> Note | None:
        """Return the note of a shard that an earlier preparation has finished."""
        try:
            fields = json.loads(self._note_path(shard).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        note = Note(**{**fields, "shard": Shard(**fields["shard"])})
        is_there = all((self.folder / name).is_file() for name in self.files_of(shard))
        return note if is_there and note.shard == shard else None

    def files_of(self, shard: Shard) -> list[str]:
        """Return the names of a shard's files."""
        return [
            file_name(shard.split, kind, number, shard.number)
            for kind in KINDS
            for number in range(len(getattr(self.layout, kind)))
        ]

    def _note_path(self, shard: Shard) -> Path:
        return self.notes / f"{shard.split}-{shard.number:05d}.json"

    def _chunks(self, shard: Shard) -> Iterator[Samples]:
        """Yield the shard in runs of samples of about CHUNK_BYTES."""
        source: SampleSource = getattr(self.splits, shard.split)
        count = max(1, CHUNK_BYTES // max(1, self.layout.sample_bytes))
        for start in range(shard.start, shard.stop, count):
            with own_errors(f"{self.dataset}: reader {self.reader}"):
                samples = source.read(start, min(start + count, shard.stop))
            yield samples

    def _check(self, samples: Samples, split: str) -> None:
        """Raise `DataError` for arrays of other lengths or layouts, and for labels outside the names."""
        for kind in KINDS:
            for array in getattr(samples, kind):
                if len(array) != len(samples):
                    raise DataError(
                        f"{self.dataset}: the {split} split has {len(samples)} inputs but {len(array)} {kind}"
                    )
        layout, names = Layout.of(samples), self.splits.names
        if layout != self.layout:
            raise DataError(f"{self.dataset}: some {split} samples are {layout}, the first is {self.layout}")
        if layout.has_labels:
            least, most = samples.targets[0].min(), samples.targets[0].max()
            if not 0 <= least <= most < len(names):
                raise DataError(
                    f"{self.dataset}: {split} labels run from {least} to {most}, "
                    f"but there are names for classes 0 to {len(names) - 1}"
                )


def _write_header(file: BinaryIO, dtype: str, shape: tuple[int, ...], rows: int) -> None:
    layout = {"descr": dtype, "fortran_order": False, "shape": (rows, *shape)}
    np.lib.format.write_array_header_1_0(file, layout)
