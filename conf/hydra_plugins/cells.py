"""Register the OmegaConf resolver `cells`, which turns a study's grid into its cells.

DVC imports this module while it composes `conf/study.yaml` (`hydra.plugins_path` in .dvc/config). The stage
`train` of dvc.yaml runs each cell.
"""

from __future__ import annotations

import os
import sys
from itertools import product
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

ROOT = Path(__file__).parent.parent.parent


def cells(grid: ListConfig) -> DictConfig:
    """Return the cells of a grid by name, each with its overrides for `src.train` and the code it depends on.

    Each block of the grid maps keys to values or lists of values; its cells are the Cartesian product. For a
    short look at a long study, SCALEGUIDE_MAX_CELLS limits the number of cells, and SCALEGUIDE_MAX_MINUTES
    the minutes of each, which then appear in its name.

    Raises:
        ConfigError: for a cell with a wrong name, type or range, or a cell that occurs twice.
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
    limit = int(os.environ.get("SCALEGUIDE_MAX_CELLS") or len(rows))
    cells_by_name = {name: _describe_cell(raw, row) for name, raw, row in compose.name_rows(rows[:limit])}
    if len(cells_by_name) < len(rows[:limit]):
        raise compose.ConfigError("the study's grid names a cell twice")
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
