"""Write by which software each cell of a study is computed: what can touch its figures, and no more.

This is the stage `software` of dvc.yaml:

    python -m src.software      # writes software/<configuration>.txt, where anything has changed

The stage train depends on these files in the place of code. `make run` and `make study` run this first, since
DVC doesn't notice that a library was upgraded, or that code of the user's own outside src/ has changed.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from omegaconf import OmegaConf

from src.config import CONF, Config, choices, compose
from src.config.keys import GROUPS
from src.measure.software import software_of
from src.run import exit_lines
from src.run.tables import write_text

PARAMS, FOLDER = Path("params.yaml"), Path("software")


def main() -> int:
    """Run the stage and return the exit status: 0, or 2 where there is no study, or a mistake in it."""
    return exit_lines.run(_write_software)


def _write_software() -> None:
    """Write a file for each configuration of the study in params.yaml, unless it is as it should be."""
    cells = (choices.read(PARAMS).get("study") or {}).get("cells") or {}
    FOLDER.mkdir(exist_ok=True)
    for name, config in _configs(cells):
        parts = software_of(config).values()
        text = "".join(f"{key} {known}\n" for part in parts for key, known in part.items())
        path = FOLDER / f"{name}.txt"
        if not path.exists() or path.read_text() != text:
            write_text(path, text)


def _configs(cells: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, Config]]:
    """Yield the name of each configuration, and the configuration as far as it says which code is used.

    Choices of different groups are composed at once, whatever they would be together: that is quicker than
    to compose each cell.
    """
    configurations = {str(cell["configuration"]): cell for cell in cells.values()}
    choices_of = [dict.fromkeys(str(cell[group]) for cell in cells.values()) for group in GROUPS]
    composed: dict[tuple[str, str], Any] = {}
    with initialize_config_dir(str(CONF.absolute()), version_base="1.3"):
        for row in zip_longest(*choices_of):
            chosen = [pair for pair in zip(GROUPS, row, strict=True) if pair[1] is not None]
            plain = compose.group_defaults(["=".join(pair) for pair in chosen])
            composed |= {(group, choice): plain[group] for group, choice in chosen}
    for name, cell in configurations.items():
        words = [word for word in shlex.split(cell["overrides"]) if word.partition("=")[0] not in GROUPS]
        typed: Any = OmegaConf.to_container(OmegaConf.from_dotlist([word.lstrip("+") for word in words]))
        groups = {group: {**composed[group, str(cell[group])], **typed.get(group, {})} for group in GROUPS}
        yield name, Config(**{**plain, **typed, **groups})


if __name__ == "__main__":
    sys.exit(main())
