"""Which datasets there are and where their prepared arrays lie.

Quick to import, for the parent process of a run asks here before anything heavy is loaded.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import yaml

from src.data.errors import DataError, clear_disk_errors
from src.data.sources import fetch

CHOICES = Path("conf/dataset")
PREPARED = Path("prepared")
PREPARED_FILES = ("meta.json", "train_images.npy", "train_labels.npy", "test_images.npy", "test_labels.npy")
# Raised whenever prepared folders change their form, so that older ones are made anew.
FORM = 1


class UnknownDataset(DataError):
    """A dataset's name that conf/dataset/ doesn't have."""


def choice(name: str) -> dict[str, Any]:
    """The dataset of conf/dataset/NAME.yaml, under the current directory.

    Raises UnknownDataset with the nearest name there is, or DataError for a file that says another name.
    """
    names = sorted(path.stem for path in CHOICES.glob("*.yaml"))
    if name not in names:
        nearest = difflib.get_close_matches(str(name), names, n=1, cutoff=0.0)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise UnknownDataset(f"unknown dataset {name!r}: {CHOICES} has {', '.join(names) or 'none'}{hint}")
    path = CHOICES / f"{name}.yaml"
    dataset = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(dataset, dict) or dataset.get("name") != name:
        raise DataError(f"{path} must be a mapping with `name: {name}`")
    for key, kind in {"reader": str, "data_source": str, "files": dict, "sources": list}.items():
        if not isinstance(dataset.get(key), kind):
            raise DataError(f"{path}: `{key}` must be a {kind.__name__}, got {dataset.get(key)!r}")
    return dataset


def cache_folder() -> Path:
    """Where raw files, packages and arrays are kept outside the repository.

    SCALEGUIDE_CACHE, or `scaleguide` under XDG_CACHE_HOME, or ~/.cache/scaleguide.
    """
    if own := os.environ.get("SCALEGUIDE_CACHE"):
        return Path(own).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "scaleguide"


def fingerprint(dataset: dict[str, Any]) -> str:
    """12 hexadecimal digits that change when the prepared arrays would: not with limits, `sources`."""
    parts = {key: dataset.get(key) for key in ("name", "reader", "data_source", "files", "options")}
    text = json.dumps({"form": FORM, **parts}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def locate(dataset: dict[str, Any]) -> Path | None:
    """The folder with this dataset's prepared arrays: prepared/NAME here, else the cache's, else None."""
    wanted = fingerprint(dataset)
    for folder in (PREPARED / dataset["name"], _cached(dataset)):
        if _is_prepared(folder, wanted):
            return folder
    return None


def ensure(dataset: dict[str, Any]) -> Path:
    """Like `locate`, but fetches and prepares what is not there, into the cache folder. Raises DataError.

    Processes that ensure the same dataset at once each prepare their own copy; the first one to finish wins.
    """
    if found := locate(dataset):
        return found
    # Imported here because it loads numpy.
    from src.preprocess import prepare

    target = _cached(dataset)
    with clear_disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="partial-", dir=target.parent) as work:
            raw, mine = Path(work) / "raw", Path(work) / "prepared"
            fetch(dataset, raw, cache_folder())
            prepare(dataset, raw, mine)
            if target.exists() and not _is_prepared(target, fingerprint(dataset)):
                shutil.rmtree(target)
            try:
                os.rename(mine, target)
            except OSError:
                if not _is_prepared(target, fingerprint(dataset)):
                    raise
    return target


def _cached(dataset: dict[str, Any]) -> Path:
    return cache_folder() / "prepared" / f"{dataset['name']}-{fingerprint(dataset)}"


def _is_prepared(folder: Path, wanted: str) -> bool:
    if not all((folder / file).is_file() for file in PREPARED_FILES):
        return False
    try:
        return json.loads((folder / "meta.json").read_text(encoding="utf-8"))["fingerprint"] == wanted
    except (OSError, ValueError, KeyError, TypeError):
        return False


def samples(dataset: dict[str, Any]) -> int:
    """Training samples of a prepared dataset, at most its `limit`. Raises DataError if it isn't prepared."""
    folder = locate(dataset)
    if folder is None:
        raise DataError(f"dataset {dataset['name']} is not prepared; `dvc repro preprocess` makes it")
    count = json.loads((folder / "meta.json").read_text(encoding="utf-8"))["train_samples"]
    return min(count, dataset.get("limit") or count)
