"""The OmegaConf resolver `cells`: a study's grid as the named cells that dvc.yaml's `train` loops over.

DVC imports this module while it composes `conf/study.yaml` (`hydra.plugins_path` in .dvc/config).
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
    """One cell a combination: its overrides for `src.train`, and the code that it reads.

    In each block of the grid lists are crossed. SCALEGUIDE_MAX_CELLS keeps the first so many cells,
    for a short look at a long study; SCALEGUIDE_MAX_MINUTES caps their minutes, as their names then say.

    Raises:
        ConfigError: for a cell that `src.train` would refuse for a name, type or range.
    """
    # DVC's process doesn't have the repository on its path.
    sys.path.insert(0, str(ROOT))
    try:
        from src import compose
    finally:
        sys.path.remove(str(ROOT))
    rows = [
        [f"{key}={value}" for key, value in zip(block, chosen, strict=True)]
        for block in OmegaConf.to_container(grid)
        for chosen in product(*(v if isinstance(v, list) else [v] for v in block.values()))
    ]
    limit = int(os.environ.get("SCALEGUIDE_MAX_CELLS") or len(rows))
    named = {name: _cell(raw, row) for name, raw, row in compose.name_rows(rows[:limit])}
    if len(named) < len(rows[:limit]):
        raise compose.ConfigError("the study's grid names a cell twice")
    return OmegaConf.create(named)


def _cell(raw: dict[str, Any], row: list[str]) -> dict[str, Any]:
    framework = raw["strategy"]["framework"]
    choices = dict(word.split("=", 1) for word in row)
    return {
        **{group: choices[group] for group in ("strategy", "model", "dataset")},
        "hardware": choices.get("hardware", "local"),
        "framework": framework,
        "strategy_code": _file(raw["strategy"]["entry"]),
        "model_code": _file(raw["model"][framework]),
        "overrides": " ".join(f"'{word}'" for word in row),
    }


def _file(path: str) -> str:
    return path.rpartition(".")[0].replace(".", "/") + ".py"


OmegaConf.register_new_resolver("cells", cells, replace=True)
