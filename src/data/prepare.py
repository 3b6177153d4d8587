"""Turn a dataset's raw files into the arrays that ranks map into memory.

All is made in a folder beside the target, which takes its name once it is whole:

    prepared/.cifar10-0123456789ab.partial/
        raw.json        the raw files and the reader that the rest comes from
        unpacked/       one folder an archive, where the dataset has archives
        shards/         the arrays; becomes prepared/cifar10
        notes/          one a finished shard; who is killed goes on after these
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from contextlib import closing
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import MofNCompleteColumn, TextColumn, TimeRemainingColumn

from src.data import scratch, splits_of
from src.data.archives import unpack_all
from src.data.arrays import SPLITS
from src.data.catalog import fingerprint
from src.data.decoding import write_shards
from src.data.errors import DataError, mount_point
from src.data.own_code import import_of
from src.data.samples import Layout, Splits
from src.data.shard_writer import Note, Shard, ShardWriter
from src.machine.terminal_bar import TerminalBar

# Files of one array are no larger, but where a single sample is.
SHARD_BYTES = 1 << 26
# A deviation of pixels / 255 below this is rounding.
CONSTANT = 1e-12
# Warnings of damaged samples that are printed at most.
MOST_WARNINGS = 20
# Damaged samples that an error names at most.
MOST_NAMED = 5
RAW, UNPACKED, SHARDS, NOTES, OLD = "raw.json", "unpacked", "shards", "notes", "old"

Notes = dict[str, list[Note]]


def prepare(dataset: Mapping[str, Any], raw: Path, target: Path) -> None:
    """Read the raw files in `raw` by the dataset's reader and write its arrays and meta.json to `target`.

    `target` is replaced once everything is written; otherwise as `scratch.prepare_in` says.

    Raises:
        DataError: for missing or unusable data, a reader that can't be imported, and a full disk.
    """
    for file in dataset["files"]:
        if not (raw / file).is_file():
            raise DataError(
                f"{dataset['name']}: {raw / file} is missing; `dvc repro fetch data.dvc preprocess` makes it"
            )
    scratch.prepare_in(dataset, target, lambda work: build(dataset, raw, target, work), anew=True)


def build(dataset: Mapping[str, Any], raw: Path, target: Path, work: Path) -> None:
    """Write the arrays to `target` by way of the folder `work`, which is this process's alone.

    Raises:
        DataError: as `prepare` does.
        OSError: where a disk can't be used.
    """
    name = dataset["name"]
    reader = import_of(dataset, "reader")
    _drop_unless_of(_provenance(dataset, raw), work)
    if dataset.get("unpack"):
        raw = unpack_all(dataset, raw, work / UNPACKED)
    splits = splits_of.read(dataset, reader, raw)
    layout = splits_of.check(splits, dataset)
    for warning in (*splits.warnings, *splits_of.warnings(layout)):
        print(f"{name}: warning: {warning}", file=sys.stderr, flush=True)
    for folder in (SHARDS, NOTES):
        (work / folder).mkdir(exist_ok=True)
    writer = ShardWriter(name, dataset["reader"], splits, layout, work / SHARDS, work / NOTES)
    notes = _write(writer, _shards(splits, layout), target, splits_of.most_damaged(dataset))
    if dataset.get("skip_damaged") is False:
        _refuse_damage(name, notes)
    _warn_of_damage(name, notes)
    _check_classes(notes, splits.names, name)
    mean, std = _statistics(notes["train"])
    meta = {
        "name": name,
        "shape": list(layout.inputs[0][1]),
        "inputs": layout.described("inputs"),
        "targets": layout.described("targets"),
        "names": list(splits.names),
        "vocabulary": splits.vocabulary,
        "mean": mean,
        "std": std,
        "train_samples": sum(note.rows for note in notes["train"]),
        "test_samples": sum(note.rows for note in notes["test"]),
        "damaged": {split: sum(len(note.damaged) for note in notes[split]) for split in SPLITS},
        "shards": {split: [note.rows for note in notes[split]] for split in SPLITS},
        "data_source": dataset["source"],
        "fingerprint": fingerprint(dataset),
        "files": [name for split in SPLITS for note in notes[split] for name in writer.files_of(note.shard)],
    }
    (work / SHARDS / "meta.json").write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
    if target.exists():
        shutil.rmtree(work / OLD, ignore_errors=True)
        os.rename(target, work / OLD)
    os.rename(work / SHARDS, target)


def _provenance(dataset: Mapping[str, Any], raw: Path) -> str:
    """Return a text that changes with the raw files.

    What an interrupted preparation has made of others is of no use.
    """
    stats = {file: (raw / file).stat() for file in dataset["files"]}
    files = {file: [stat.st_size, stat.st_mtime_ns] for file, stat in stats.items()}
    return json.dumps({"files": files}, sort_keys=True)


def _drop_unless_of(provenance: str, work: Path) -> None:
    """Remove what an earlier process has left in `work`, unless it is of the same raw files."""
    path = work / RAW
    if not (path.exists() and path.read_text(encoding="utf-8") == provenance):
        for folder in (UNPACKED, SHARDS, NOTES):
            shutil.rmtree(work / folder, ignore_errors=True)
        path.write_text(provenance, encoding="utf-8")


def _shards(splits: Splits, layout: Layout) -> list[Shard]:
    """Return the shards of both splits: runs of as many samples as SHARD_BYTES hold."""
    count = max(1, SHARD_BYTES // max(1, layout.sample_bytes))
    return [
        Shard(split, number, number * count, min((number + 1) * count, len(source)))
        for split, source in ((split, getattr(splits, split)) for split in SPLITS)
        for number in range(ceil(len(source) / count))
    ]


def _write(writer: ShardWriter, shards: list[Shard], target: Path, most: float) -> Notes:
    """Write the shards that aren't finished yet; return the notes of all, by split and in order.

    At most the part `most` of a split may be damaged.
    """
    finished = [note for note in map(writer.finished, shards) if note is not None]
    done = {note.shard for note in finished}
    pending = [shard for shard in shards if shard not in done]
    _check_room(writer, pending, target)
    samples, left = (sum(each.stop - each.start for each in some) for some in (shards, pending))
    damaged: dict[str, list[str]] = {split: [] for split in SPLITS}
    with TerminalBar(
        f"preparing {writer.dataset}",
        MofNCompleteColumn(),
        TextColumn("samples"),
        TimeRemainingColumn(),
        total=samples,
        done=samples - left,
        line=lambda done: f"  {writer.dataset}: {done} of {samples} samples prepared",
    ) as progress:
        for note in finished:
            damaged[note.shard.split] += note.damaged
        with closing(write_shards(writer, pending)) as notes:
            for note in notes:
                finished.append(note)
                split = note.shard.split
                damaged[split] += note.damaged
                samples_in = len(getattr(writer.splits, split))
                splits_of.refuse_damage(writer.dataset, split, samples_in, damaged[split], most)
                progress.advance(note.shard.stop - note.shard.start)
    finished.sort(key=lambda note: note.shard.start)
    return {split: [note for note in finished if note.shard.split == split] for split in SPLITS}


def _check_room(writer: ShardWriter, shards: list[Shard], target: Path) -> None:
    """Raise `DataError` where the file system has too little room for shards."""
    needed = writer.layout.sample_bytes * sum(shard.stop - shard.start for shard in shards)
    free = shutil.disk_usage(writer.folder).free
    if needed > free:
        raise DataError(
            f"{writer.dataset}: its arrays take {needed / 1e6:,.1f} MB more and the file system "
            f"{mount_point(target)} has {free / 1e6:,.1f} MB left: {target} can't be written"
        )


def _refuse_damage(dataset: str, notes: Notes) -> None:
    """Raise `DataError` that names the samples that can't be read, or the first of many, if there are any."""
    damaged = [each for split in notes.values() for note in split for each in note.damaged]
    if damaged:
        more = f", and {len(damaged) - MOST_NAMED:,} more" if len(damaged) > MOST_NAMED else ""
        raise DataError(
            f"{dataset}: {len(damaged):,} image(s) can't be read: "
            f"{'; '.join(damaged[:MOST_NAMED])}{more}; mend or remove them, or leave "
            "them out by dataset.skip_damaged=true"
        )


def _warn_of_damage(dataset: str, notes: Notes) -> None:
    """Print a warning for each sample that was left out of the splits, or for the first of many."""
    damaged = [each for split in notes.values() for note in split for each in note.damaged]
    lines = [f"{dataset}: warning: left out {each}" for each in damaged[:MOST_WARNINGS]]
    if len(damaged) > MOST_WARNINGS:
        lines.append(f"{dataset}: warning: left out {len(damaged) - MOST_WARNINGS} more damaged samples")
    for line in lines:
        print(" ".join(line.split()), file=sys.stderr, flush=True)


def _check_classes(notes: Notes, names: tuple[str, ...], dataset: str) -> None:
    """Raise `DataError` where a class has no training sample."""
    labels = [note.labels for note in notes["train"]]
    if labels[0]:
        missing = [names[number] for number in np.flatnonzero(np.sum(labels, axis=0) == 0)]
        if missing:
            others = f", nor of {len(missing) - 1} of the others" if len(missing) > 1 else ""
            raise DataError(f"{dataset}: no training sample is of class {missing[0]!r}{others}")


def _statistics(notes: list[Note]) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of the training pixels / 255 by channel; none without images."""
    if not notes[0].pixels:
        return [], []
    # Each channel's count of each of the 256 values gives exact sums, however large the dataset is.
    counts = np.sum([note.pixels for note in notes], axis=0)
    values = np.arange(256) / 255
    total = counts[0].sum()
    mean = counts @ values / total
    std = np.sqrt((counts * (values - mean[:, np.newaxis]) ** 2).sum(axis=1) / total)
    # A channel that never varies gets 1, so that dividing by it is harmless; rounding isn't 0.
    return mean.tolist(), np.where(std > CONSTANT, std, 1.0).tolist()
