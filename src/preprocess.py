"""Turn a dataset's raw files into arrays that can be mapped into memory: dvc.yaml's stage `preprocess`.

`python -m src.preprocess NAME` reads data/NAME and writes prepared/NAME: the arrays, and meta.json.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from src.config.endings import FAILURE, INTERRUPTED, MISTAKE, complain, unexpected
from src.data.catalog import PREPARED, choice
from src.data.errors import DataError, DataMistake
from src.data.prepare import prepare


def main(arguments: list[str] | None = None) -> int:
    """Run the stage and return the exit status: 0, 1 for data that can't be read, 2 for an unknown name."""
    parser = argparse.ArgumentParser(
        prog="python -m src.preprocess", description="Turn raw files into arrays."
    )
    parser.add_argument("name", help="a dataset of conf/dataset/, whose raw files are in data/NAME")
    name = parser.parse_args(arguments).name
    try:
        prepare(choice(name), Path("data") / name, PREPARED / name)
    except DataError as error:
        return complain(f"error: {error}", MISTAKE if isinstance(error, DataMistake) else FAILURE)
    except KeyboardInterrupt:
        return complain("interrupted", INTERRUPTED)
    except Exception as error:
        return unexpected(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
