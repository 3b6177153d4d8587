"""Write by which software each cell of a study is computed: what can touch its figures, and no more.

This is the stage `software` of dvc.yaml:

    python -m src.software      # writes software/<configuration>.txt, where anything has changed

The stage train depends on these files in the place of code. `make run` and `make study` run this first, since
DVC doesn't notice that a library was upgraded, or that code of the user's own outside src/ has changed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from src.config import choices
from src.measure.software import software_of
from src.run import exit_lines
from src.run.tables import write_text
from src.study.configurations import configurations

PARAMS, FOLDER = Path("params.yaml"), Path("software")


def main() -> int:
    """Run the stage and return the exit status: 0, or 2 where there is no study, or a mistake in it."""
    return exit_lines.run(_write_software)


def _write_software() -> None:
    """Write a file for each configuration of the study in params.yaml, unless it is as it should be."""
    cells = (choices.read(PARAMS).get("study") or {}).get("cells") or {}
    FOLDER.mkdir(exist_ok=True)
    for name, config in configurations(cells):
        parts = software_of(config).values()
        text = "".join(f"{key} {known}\n" for part in parts for key, known in part.items())
        path = FOLDER / f"{name}.txt"
        if not path.exists() or path.read_text() != text:
            write_text(path, text)


if __name__ == "__main__":
    sys.exit(main())
