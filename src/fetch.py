"""Fetch and verify the raw files of a study's datasets: the `fetch` stage of dvc.yaml.

`python -m src.fetch` leaves downloads/NAME/FILE for exactly the datasets that `study.datasets` in params.yaml
lists. Verified files are kept in the cache folder, so that nothing is downloaded twice.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

import yaml

from src.data.catalog import UnknownDataset, cache_folder, choice
from src.data.errors import DataError, clear_disk_errors
from src.data.sources import fetch

DOWNLOADS = Path("downloads")
PARAMS = Path("params.yaml")
NO_FILES = "none"


def fetch_study(names: list[str]) -> None:
    """Make downloads/ hold exactly the raw files of the datasets with these names.

    Raises:
        UnknownDataset: for a name without a dataset, before anything is fetched or removed.
        DataError: for files that can't be fetched, or a disk that can't be written.
    """
    datasets = [choice(name) for name in names]
    with clear_disk_errors(DOWNLOADS):
        DOWNLOADS.mkdir(exist_ok=True)
        _keep_only(DOWNLOADS, set(names))
    for dataset in datasets:
        _fetch_one(dataset, DOWNLOADS / dataset["name"])


def _fetch_one(dataset: dict[str, Any], folder: Path) -> None:
    """Make `folder` hold exactly the raw files of a dataset, or a note where there are none."""
    fetch(dataset, folder, cache_folder())
    with clear_disk_errors(folder):
        if not dataset["files"]:
            # DVC doesn't accept an empty folder as an output.
            (folder / NO_FILES).write_text(
                f"{dataset['name']} has no raw files: {dataset['reader']} makes or finds the data itself.\n",
                encoding="utf-8",
            )
        _keep_only(folder, {Path(file).parts[0] for file in dataset["files"] or [NO_FILES]})


def _keep_only(folder: Path, names: set[str]) -> None:
    """Remove everything from a folder except entries with these names."""
    for path in folder.iterdir():
        if path.name in names:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _study_datasets() -> list[str]:
    """Return the dataset names in params.yaml; raise `DataError` where there is no list of them."""
    try:
        names = yaml.safe_load(PARAMS.read_text(encoding="utf-8"))["study"]["datasets"]
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise DataError(
            f"{PARAMS} must list the datasets to fetch under study.datasets ({error!r})"
        ) from error
    if not isinstance(names, list):
        raise DataError(f"study.datasets in {PARAMS} must be a list of names, got {names!r}")
    return names


def main(arguments: list[str] | None = None) -> int:
    """Run the stage and return the exit status: 0, 1 for data that can't be had, 2 for an unknown name."""
    parser = argparse.ArgumentParser(
        prog="python -m src.fetch",
        description="Fetch the raw files of the datasets in params.yaml (study.datasets) into downloads/.",
        epilog="Verified files are kept in SCALEGUIDE_CACHE (default ~/.cache/scaleguide).",
    )
    parser.parse_args(arguments)
    try:
        fetch_study(_study_datasets())
    except DataError as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, UnknownDataset) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
