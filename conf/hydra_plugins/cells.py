"""Register the OmegaConf resolver `cells`, which turns a study's grid into its cells.

DVC imports this module while it composes `conf/study.yaml` (`hydra.plugins_path` in .dvc/config). The stage
`train` of dvc.yaml runs each cell.
"""

from __future__ import annotations

import os
import random
import sys
from itertools import product
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

ROOT = Path(__file__).parent.parent.parent


def cells(grid: ListConfig, repeat: int = 1) -> DictConfig:
    """Return the cells of a grid by name, each with its overrides for `src.train` and the code it depends on.

    Each block of the grid maps keys to values or lists of values; its configurations are the Cartesian
    product, and each is measured `repeat` times. A repetition is a cell of its own, so that one more doesn't
    run the others again; the first has the configuration's name, later ones end in `-r2`, `-r3`, ... DVC runs
    cells in this order: all first repetitions as the grid has them, then each further round shuffled, so that
    neither a drift of the machine nor a cell's predecessor always favours the same.

    For a short look at a long study, SCALEGUIDE_MAX_CELLS limits the number of configurations, and
    SCALEGUIDE_MAX_MINUTES the minutes of each, which then appear in its name.

    Raises:
        ConfigError: for a cell with a wrong name, type or range, one that occurs twice, or a wrong `repeat`.
    """
    # DVC's process doesn't have the repository on its path.
    sys.path.insert(0, str(ROOT))
    try:
        from src.config import compose
    finally:
        sys.path.remove(str(ROOT))
    rows = [
        [f"{key}={value}" for key, value in zip(block, values, strict=True)]
        for block in OmegaConf.to_container(grid)
        for values in product(*(v if isinstance(v, list) else [v] for v in block.values()))
    ]
    if not isinstance(repeat, int) or isinstance(repeat, bool) or repeat < 1:
        raise compose.ConfigError(f"study.repeat={repeat}: must be a whole number, at least 1")
    limit = int(os.environ.get("SCALEGUIDE_MAX_CELLS") or len(rows))
    described = {name: _describe_cell(raw, row) for name, raw, row in compose.name_rows(rows[:limit])}
    if len(described) < len(rows[:limit]):
        raise compose.ConfigError("the study's grid names a cell twice")
    cells_by_name = {}
    for repetition in range(1, repeat + 1):
        names = list(described)
        if repetition > 1:
            random.Random(repetition).shuffle(names)
        for name in names:
            cell = name if repetition == 1 else f"{name}-r{repetition}"
            cells_by_name[cell] = {**described[name], "configuration": name, "repetition": repetition}
    return OmegaConf.create(cells_by_name)


def _describe_cell(raw: dict[str, Any], row: list[str]) -> dict[str, Any]:
    """Return the entry of a cell with the composition `raw` and the overrides `row`."""
    framework = raw["strategy"]["framework"]
    choices = dict(word.split("=", 1) for word in row)
    return {
        **{group: choices[group] for group in ("strategy", "model", "dataset")},
        "hardware": choices.get("hardware", "local"),
        "framework": framework,
        "strategy_code": _source_file(raw["strategy"]["entry"]),
        "model_code": _source_file(raw["model"][framework]),
        "overrides": " ".join(f"'{word}'" for word in row),
    }


def _source_file(path: str) -> str:
    """Return the source file of an object by its import path."""
    return path.rpartition(".")[0].replace(".", "/") + ".py"


OmegaConf.register_new_resolver("cells", cells, replace=True)
