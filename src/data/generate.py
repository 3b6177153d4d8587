"""Have a dataset's generator write a stand-in of its files, in the formats of the original."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from src.data.downloads import megabytes
from src.data.errors import DataError, clear_disk_errors
from src.data.mirrors import say
from src.data.own_code import import_of, own_errors


def generate(dataset: Mapping[str, Any], target: Path) -> None:
    """Write the files of a dataset's stand-in into `target`; they appear there once all are written.

    Raises:
        DataMistake: for a generator that there isn't.
        DataError: for one that fails, or doesn't write each file.
    """
    name, write = dataset["name"], import_of(dataset, "generator")
    say(
        f"{name}: generating a stand-in (fraction {dataset['fraction']:g}, seed "
        f"{dataset['generator_seed']}), whose results are not the original's"
    )
    started = time.monotonic()
    with clear_disk_errors(target):
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as work:
            _write(dataset, write, Path(work))
            size = sum((Path(work) / file).stat().st_size for file in dataset["files"])
            for file in dataset["files"]:
                (target / file).parent.mkdir(parents=True, exist_ok=True)
                os.replace(Path(work) / file, target / file)
    say(f"{name}: generated {megabytes(size)} in {time.monotonic() - started:.1f} s")


def _write(dataset: Mapping[str, Any], write: Any, folder: Path) -> None:
    """Call a generator; raise `DataError` where it fails, or leaves a file away."""
    where = f"{dataset['name']}: generator {dataset['generator']}"
    options = dict(dataset.get("options") or {})
    with own_errors(where):
        write(folder, fraction=dataset["fraction"], seed=dataset["generator_seed"], options=options)
    if missing := [file for file in dataset["files"] if not (folder / file).is_file()]:
        raise DataError(f"{where}: wrote no {missing[0]}")
