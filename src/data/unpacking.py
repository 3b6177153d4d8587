"""Unpack the archives among a dataset's raw files."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from src.data.archives import unpack

SUFFIXES = (".tar.gz", ".tgz", ".tar", ".zip")


def unpack_all(dataset: Mapping[str, Any], raw: Path, target: Path) -> Path:
    """Unpack each archive of `raw` into a folder of its name without the suffix, and return `target`.

    Other files are linked to. An archive that an earlier call has unpacked is left as it is.

    Raises:
        DataError: for an archive that is damaged, or that holds more or other things than it may.
    """
    target.mkdir(exist_ok=True)
    for file in dataset["files"]:
        suffix = next((each for each in SUFFIXES if file.endswith(each)), None)
        unpacked = target / file.removesuffix(suffix or "")
        if unpacked.exists():
            continue
        unpacked.parent.mkdir(parents=True, exist_ok=True)
        if suffix is None:
            os.symlink((raw / file).resolve(), unpacked)
            continue
        print(f"{dataset['name']}: unpacking {file}", file=sys.stderr, flush=True)
        partial = unpacked.with_name(f".{unpacked.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        limits = dataset["unpack"]
        unpack(raw / file, partial, most_bytes=limits["bytes"], most_files=limits["files"])
        os.rename(partial, unpacked)
    return target
