"""Turn a dataset's raw files into arrays that can be mapped into memory: dvc.yaml's stage `preprocess`.

`python -m src.preprocess NAME` reads data/NAME and writes prepared/NAME: the arrays, and meta.json. With
options it reads another folder: `python -m src.preprocess cifar10 source=generated` data/cifar10-generated.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import yaml

from src.data.catalog import NO_FILES, PREPARED, configure, folder_name
from src.data.errors import DataMistake, clear_disk_errors
from src.data.prepare import prepare
from src.run import exit_lines


def _options(words: list[str]) -> dict[str, Any]:
    """Read options that are typed as key=value."""
    options = {}
    for word in words:
        key, equals, value = word.partition("=")
        try:
            options[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            options[key] = value
        if not equals:
            raise DataMistake(f"{word}: can't be read as key=value")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run the stage and return the exit status: 0, 1 for data that can't be read, 2 for an unknown name."""
    parser = argparse.ArgumentParser(
        prog="python -m src.preprocess", description="Turn raw files into arrays."
    )
    parser.add_argument("name", help="a dataset of conf/dataset/, whose raw files are in data/")
    parser.add_argument(
        "options", nargs="*", help="source=generated, size=64, fraction=..., generator_seed=..."
    )
    given = parser.parse_args(arguments)
    return exit_lines.run(lambda: _preprocess(given.name, given.options))


def _preprocess(name: str, options: list[str]) -> None:
    """Prepare the raw files of a dataset with options as they are typed."""
    dataset = configure({"name": name, **_options(options)})
    folder = folder_name(dataset)
    if dataset.get("in_memory"):
        _note_none(folder)
    else:
        prepare(dataset, Path("data") / folder, PREPARED / folder)


def _note_none(name: str) -> None:
    """Write a note into prepared/NAME, which DVC expects, of a dataset that has no prepared arrays."""
    folder = PREPARED / name
    with clear_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / NO_FILES).write_text(f"{name} is made in memory by each process.\n", encoding="utf-8")


if __name__ == "__main__":
    exit_lines.leave(main)
