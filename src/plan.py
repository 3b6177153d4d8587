"""Say before a study starts how many of its cells are to be measured, and how long that takes.

This is what `make run` and `make study` do first:

    python -m src.plan                  # of the study in params.yaml
    python -m src.plan batch_sweep 3    # of conf/study/batch_sweep.yaml, each cell three times
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import OmegaConf

from src.config import CONF, Config, ConfigError, choices
from src.config.command_line import first_line
from src.config.mistakes import nearest
from src.launch import expected_time
from src.launch.finished_cells import by_this_software
from src.run import exit_lines, files
from src.study.configurations import configurations

PARAMS = Path("params.yaml")
# `src.software` writes it anew where files of the user's own have changed.
DATASETS = Path("software/datasets.txt")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the plan; return the exit status: 0, or 2 for a mistake in the study."""
    parser = argparse.ArgumentParser("python -m src.plan", description="How long a study takes.")
    parser.add_argument("name", nargs="?", help="a study of conf/study/ (default: that in params.yaml)")
    parser.add_argument("repeat", nargs="?", help="how often each cell is measured")
    options = parser.parse_args(arguments)
    return exit_lines.run(lambda: _print_plan(options.name, options.repeat))


def _print_plan(name: str | None, repeat: str | None) -> None:
    study = choices.read(PARAMS).get("study") if name is None else composed(name, repeat)
    if not isinstance(study, Mapping) or not isinstance(study.get("cells"), Mapping) or not study["cells"]:
        raise ConfigError(f"{PARAMS}: holds no study with cells; `dvc exp run -S study=quick` writes one")
    changed = _own_files_changed(study)
    cells = list(_cells(study))
    left = [cell for cell in cells if not by_this_software(cell) or _ended(cell) < changed]
    kept = len(cells) - len(left)
    said = expected_time.sentence(left, kept) if left else f"all {kept} runs were measured before"
    print(f"study {study.get('name')}: {said}", flush=True)


def composed(name: str, repeat: str | None) -> Mapping[str, Any]:
    """Return a study of conf/study/ as DVC composes it."""
    names = sorted(path.stem for path in (CONF / "study").glob("*.yaml"))
    if name not in names:
        raise ConfigError(
            f"study={name}: no such study; there are {', '.join(names)}; did you mean {nearest(name, names)}?"
        )
    sys.path.insert(0, str(CONF))
    # It registers the resolvers that the study's file needs.
    resolve_name("hydra_plugins.cells")
    words = [f"study={name}", *([f"study.repeat={repeat}"] if repeat else [])]
    try:
        with initialize_config_dir(str(CONF.absolute()), version_base="1.3"):
            study = hydra_compose("study", words)
        # The resolvers compose each cell by Hydra, which can't do two things at once.
        composed: Any = OmegaConf.to_container(study, resolve=True)
    except Exception as error:
        raise ConfigError(f"conf/study/{name}.yaml: {first_line(error)}") from error
    return composed["study"]


def _own_files_changed(study: Mapping[str, Any]) -> float:
    """Return when files of the user's own that a study reads were last seen to change; 0 without any."""
    if not any(isinstance(entry, Mapping) and entry.get("data_dir") for entry in study.get("datasets") or []):
        return 0.0
    return DATASETS.stat().st_mtime if DATASETS.exists() else math.inf


def _ended(config: Config) -> float:
    metrics = Path(config.out) / files.METRICS
    return metrics.stat().st_mtime if metrics.exists() else 0.0


def _cells(study: Mapping[str, Any]) -> Iterator[Config]:
    """Yield the configuration of each cell, with the directory of its run."""
    known = dict(configurations(study["cells"]))
    again = int((study.get("repeat") or 1) > 1)
    for name, cell in study["cells"].items():
        config = known[str(cell["configuration"])]
        hardware = config.hardware
        if hardware.repeat_disturbed is None:
            hardware = dataclasses.replace(hardware, repeat_disturbed=again)
        out = f"results/{study['name']}/runs/{name}"
        yield dataclasses.replace(config, out=out, hardware=hardware)


if __name__ == "__main__":
    sys.exit(main())
