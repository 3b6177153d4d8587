"""Turn a dataset's raw files into arrays that can be mapped into memory: dvc.yaml's stage `preprocess`.

`python -m src.preprocess NAME` reads data/NAME and writes prepared/NAME: the arrays, and meta.json.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from src.config.endings import FAILURE, INTERRUPTED, MISTAKE, complain, unexpected
from src.data.catalog import NO_FILES, PREPARED, choice
from src.data.errors import DataError, DataMistake, clear_disk_errors
from src.data.prepare import prepare


def main(arguments: list[str] | None = None) -> int:
    """Run the stage and return the exit status: 0, 1 for data that can't be read, 2 for an unknown name."""
    parser = argparse.ArgumentParser(
        prog="python -m src.preprocess", description="Turn raw files into arrays."
    )
    parser.add_argument("name", help="a dataset of conf/dataset/, whose raw files are in data/NAME")
    name = parser.parse_args(arguments).name
    try:
        dataset = choice(name)
        if dataset.get("in_memory"):
            _note_none(name)
        else:
            prepare(dataset, Path("data") / name, PREPARED / name)
    except DataError as error:
        return complain(f"error: {error}", MISTAKE if isinstance(error, DataMistake) else FAILURE)
    except KeyboardInterrupt:
        return complain("interrupted", INTERRUPTED)
    except Exception as error:
        return unexpected(error)
    return 0


def _note_none(name: str) -> None:
    """Write a note into prepared/NAME, which DVC expects, of a dataset that has no prepared arrays."""
    folder = PREPARED / name
    with clear_disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / NO_FILES).write_text(f"{name} is made in memory by each process.\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
