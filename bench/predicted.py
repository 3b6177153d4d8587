"""Hold predictions of the study `predicted` against its runs.

    python -m bench.predicted profile FOLDER    # profiles its cells: FOLDER/profile.json; before and after it
    python -m bench.predicted FOLDER            # predicts its runs from that and from each other
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from src import plan
from src.config import Config, command_line, compose
from src.profile import model

STUDY = "predicted"


def cells() -> list[Config]:
    """Return the configurations of the study."""
    found = {}
    for cell in plan.composed(STUDY, None)["cells"].values():
        found[cell["configuration"]] = shlex.split(cell["overrides"])
    lines = [command_line.parse(words) for words in found.values()]
    return [config for line in lines for config in compose.cells(line)]


def main() -> None:
    """Profile, or predict."""
    if sys.argv[1] == "profile":
        model.measure(cells(), Path(sys.argv[2]))


if __name__ == "__main__":
    main()
