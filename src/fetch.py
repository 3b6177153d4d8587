"""Fetch and verify the raw files of a study's datasets: the `fetch` stage of dvc.yaml.

`python -m src.fetch` leaves downloads/FOLDER/FILE for exactly the datasets that `study.datasets` in
params.yaml lists: by name, or as {name: cifar10, source: generated}, whose folder is cifar10-generated.
Verified files are kept in the cache folder, so that nothing is downloaded twice.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

from src.config import ConfigError, choices
from src.data.catalog import NO_FILES, cache_folder, configure, folder_name
from src.data.errors import DataMistake, clear_disk_errors
from src.data.sources import TREE, fetch
from src.machine.file_locks import alone
from src.run import exit_lines

DOWNLOADS = Path("downloads")
PARAMS = Path("params.yaml")


def fetch_study(entries: list[str | dict[str, Any]]) -> None:
    """Make downloads/ hold exactly the raw files of the datasets of a study.

    Raises:
        DataMistake: for an entry that is none, before anything is fetched or removed.
        DataError: for files that can't be fetched, or a disk that can't be written.
    """
    datasets = [configure(entry) for entry in entries]
    folders = [folder_name(dataset) for dataset in datasets]
    # One process at a time: each removes what it doesn't know, which another may just be putting there.
    with clear_disk_errors(DOWNLOADS), alone(DOWNLOADS, str(DOWNLOADS)):
        DOWNLOADS.mkdir(exist_ok=True)
        _keep_only(DOWNLOADS, set(folders))
        for dataset, folder in zip(datasets, folders, strict=True):
            _fetch_one(dataset, DOWNLOADS / folder)


def _fetch_one(dataset: dict[str, Any], folder: Path) -> None:
    """Make `folder` hold exactly the raw files of a dataset, or a note where there are none."""
    fetch(dataset, folder, cache_folder())
    with clear_disk_errors(folder):
        if dataset.get("tree"):
            _keep_only(folder, {TREE})
            return
        if not dataset["files"]:
            # DVC doesn't accept an empty folder as an output.
            maker = dataset["reader"] or dataset["in_memory"]
            (folder / NO_FILES).write_text(
                f"{dataset['name']} has no raw files: {maker} makes or finds the data itself.\n",
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


def _study_datasets() -> list[str | dict[str, Any]]:
    """Return the entries of datasets in params.yaml; raise `DataMistake` where there is no list of them."""
    try:
        study = choices.read(PARAMS).get("study")
    except ConfigError as error:
        raise DataMistake(str(error)) from error
    entries = study.get("datasets") if isinstance(study, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, str | dict) for entry in entries):
        raise DataMistake(f"{PARAMS} must list the datasets to fetch under study.datasets, got {entries!r}")
    return entries


def main(arguments: list[str] | None = None) -> int:
    """Run the stage and return the exit status: 0, 1 for data that can't be had, 2 for an unknown name."""
    parser = argparse.ArgumentParser(
        prog="python -m src.fetch",
        description="Fetch the raw files of the datasets in params.yaml (study.datasets) into downloads/.",
        epilog="Verified files are kept in SCALEGUIDE_CACHE (default ~/.cache/scaleguide).",
    )
    parser.parse_args(arguments)
    return exit_lines.run(lambda: fetch_study(_study_datasets()))


if __name__ == "__main__":
    exit_lines.leave(main)
