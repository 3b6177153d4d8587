"""After which changes `dvc repro` runs which cells again, with a command in the place of each training."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from dvc.repo import Repo

from src.measure.software import software_of
from tests.support import ROOT, config

TRAIN = "mkdir -p results/stale/runs/${key} && date +%N > results/stale/runs/${key}/metrics.json"
MADE = "results/stale/report.html results/stale/tables/a summary/a"
AGGREGATE = f"mkdir -p results/stale/tables summary && touch {MADE}"
OWN = "mine/tiny.py"
# What a study's cells choose besides a model and a dataset.
CELLS: dict[str, dict[str, str]] = {
    "single": {},
    "ddp": {"strategy": "ddp"},
    "ddp_vpn": {"strategy": "ddp", "hardware": "vpn"},
    "tf": {"strategy": "tf_single"},
    "own": {"strategy": "tf_single", "model": "custom", "model.path": "mine.tiny.build"},
}


class Repository:
    """A copy of the code with a study of five cells, and of dvc.yaml three stages.

    `aggregate` depends there on no code, so that a changed one of the report makes no difference.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "repository"
        self.first: dict[str, str] = {}
        for name in ("src", "conf"):
            shutil.copytree(ROOT / name, self.folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("constraints.txt", "pyproject.toml", ".dvcignore"):
            shutil.copy2(ROOT / name, self.folder)
        graph = yaml.safe_load((ROOT / "dvc.yaml").read_text())
        stages = {name: graph["stages"][name] for name in ("software", "train", "aggregate")}
        stages["train"]["do"]["cmd"] = TRAIN
        stages["aggregate"]["cmd"] = AGGREGATE
        kept = [path for path in stages["aggregate"]["deps"] if not path.startswith("src/")]
        stages["aggregate"]["deps"] = kept
        self.write("dvc.yaml", yaml.safe_dump({"stages": stages}))
        study = {"name": "stale", "repeat": 1, "datasets": ["mnist"], "cells": _cells()}
        self.write("params.yaml", yaml.safe_dump({"study": study}))
        self.write("prepared/mnist/meta.json", "{}")
        self.write(OWN, "def build(**options): ...\n")
        self.write(".dvc/config", "[core]\nanalytics = false\n")
        subprocess.run(["git", "init", "-q", self.folder], check=True)

    def software(self) -> dict[str, str]:
        """The texts that the stage `software` has written."""
        return {path.name: path.read_text() for path in (self.folder / "software").iterdir()}

    def write(self, name: str, text: str) -> None:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text)

    def replace(self, name: str, old: str, new: str) -> None:
        text = (self.folder / name).read_text()
        assert old in text, name
        self.write(name, text.replace(old, new, 1))

    def change(self, name: str) -> None:
        """Add a statement to a file that there is."""
        path = self.folder / name
        path.write_text(f"{path.read_text()}\nCHANGED = True\n")

    def repro(self) -> set[str]:
        """The cells, or other stages, that `dvc repro` runs."""
        with Repo(str(self.folder)) as repo:
            ran = repo.reproduce()
        return {str(getattr(stage, "name", "")).removeprefix("train@") for stage in ran}


def _cells() -> dict[str, dict[str, Any]]:
    cells = {}
    for name, chosen in CELLS.items():
        words = {"strategy": "single", "model": "cnn", "dataset": "mnist", **chosen}
        cells[name] = {
            "hardware": "local",
            "task": "classification",
            "folder": "mnist",
            "configuration": name,
            "overrides": " ".join(f"'{key}={value}'" for key, value in words.items()),
            **words,
        }
    return cells


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    with pytest.MonkeyPatch.context() as patch:
        made = Repository(tmp_path_factory.mktemp("stale"))
        patch.chdir(made.folder)
        patch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        patch.setenv("DVC_SITE_CACHE_DIR", str(made.folder / "site"))
        patch.delenv("PYTHONPATH", raising=False)
        assert made.repro() == {"software", *CELLS, "aggregate"}
        made.first = made.software()
        yield made


@pytest.mark.parametrize("cell", ["single", "ddp", "tf"])
def test_a_cell_depends_on_what_its_run_records_as_its_software(repository: Repository, cell: str) -> None:
    """In this repository, too, which is another clone."""
    words = [f"{key}={value}" for key, value in CELLS[cell].items()]
    recorded = software_of(config("model=cnn", "dataset=mnist", *words))
    lines = [f"{name} {known}" for part in recorded.values() for name, known in part.items()]
    assert repository.first[f"{cell}.txt"].splitlines() == lines


def test_a_second_repro_runs_nothing(repository: Repository) -> None:
    assert repository.repro() == set()


def test_no_cell_runs_again_after_changes_that_touch_no_figure(repository: Repository) -> None:
    before = repository.software()
    repository.replace(
        "src/worker.py", "    cores = _set_up_process()", "    # Then.\n    cores = _set_up_process()"
    )
    repository.replace("src/runtime/torch/lightning/fit.py", '"""', '"""Now, ')
    for name in ("tracking/live_tracker", "launch/slurm/jobs", "report/tables", "config/compose", "train"):
        repository.change(f"src/{name}.py")
    assert repository.repro() == {"software"}
    # Their runs' software is the same, too, so that they compare.
    assert repository.software() == before


@pytest.mark.parametrize(
    ("edited", "stale"),
    [
        ("src/runtime/torch/shared_all_reduce.py", {"ddp", "ddp_vpn"}),
        ("src/launch/emulated/switch.py", {"ddp_vpn"}),
    ],
)
def test_cells_run_again_whose_figures_a_change_can_touch(
    repository: Repository, edited: str, stale: set[str]
) -> None:
    repository.change(edited)
    assert repository.repro() == {"software", *stale, "aggregate"}


def test_cells_run_again_that_import_an_upgraded_library_or_changed_code_of_the_users_own(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.change(OWN)
    installed = repository.folder / "upgraded" / "torch-99.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 99\n")
    monkeypatch.setenv("PYTHONPATH", str(installed.parent))
    # As `make run` does before `dvc repro`.
    subprocess.run([sys.executable, "-m", "src.software"], cwd=repository.folder, check=True)
    assert repository.repro() == {"software", "single", "ddp", "ddp_vpn", "own", "aggregate"}


def test_an_edited_finding_or_figure_makes_the_tables_anew_and_runs_no_cell(repository: Repository) -> None:
    """Though of a study's parameters the stage names no more than its name and repetitions."""
    # Another test may have upgraded a library, which is as it was again.
    subprocess.run([sys.executable, "-m", "src.software"], cwd=repository.folder, check=True)
    repository.repro()
    for key in ("findings", "published", "baseline"):
        params = yaml.safe_load((repository.folder / "params.yaml").read_text())
        params["study"][key] = [{"claim": "as edited"}]
        repository.write("params.yaml", yaml.safe_dump(params))
        assert repository.repro() == {"software", "aggregate"}, key
