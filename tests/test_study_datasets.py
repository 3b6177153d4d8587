"""A study says of what source its data are, and each of its cells reads the folder that it says."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from tests.support import ROOT
from tests.test_pipeline import Tree

CELL = {"strategy": "single", "model": "mlp", "dataset": "dots"}
ORIGINAL = {"name": "dots", "data_dir": "own"}
GENERATED = {"name": "dots", "source": "generated"}
SMALL = {**GENERATED, "fraction": 0.1, "generator_seed": 3}
# Datasets and a grid, and what is said of them.
MISTAKES: dict[str, tuple[Any, Any, str]] = {
    "no list": ("mnist", CELL, "study.datasets=mnist: must be a list of names"),
    "a number": ([5], CELL, "study.datasets=[5]: must be a list of names"),
    "unknown": (["mnits"], CELL, "unknown dataset 'mnits'"),
    "a source": (
        [{**GENERATED, "source": "made"}],
        CELL,
        "dataset.source=made: must be one of original, gen",
    ),
    "a stand-in that isn't": (
        [{"name": "mnist", "source": "generated"}],
        CELL,
        "dataset.source=generated: mnist has no generated stand-in",
    ),
    "an option": ([{"name": "dots", "szie": 64}], CELL, "did you mean size?"),
    "a folder": ([{"name": "dots", "data_dir": "nowhere"}], CELL, "dataset.data_dir=nowhere: no such folder"),
    "twice": ([GENERATED, GENERATED], CELL, "lists dots-generated twice"),
    "not listed": (["mnist"], CELL, "study.datasets=['mnist']: lacks dots, which the grid uses"),
    "either": (
        [ORIGINAL, GENERATED],
        CELL,
        "has dots, dots-generated; the grid must say which one it uses, as dataset.source=original",
    ),
    "two of a kind": (
        [GENERATED, SMALL],
        CELL,
        "has dots-generated, dots-generated-fraction=0.1-generator_seed=3; the grid must say which one it "
        "uses, as dataset.fraction=0.2",
    ),
    "another one": (
        [GENERATED],
        {**CELL, "dataset.source": "original"},
        "has dots-generated, and the grid asks for dots with dataset.source=original; list it, too",
    ),
    "another size": (
        [GENERATED],
        {**CELL, "dataset.size": 64},
        "asks for dots with dataset.size=64; list it",
    ),
}
STUDY = """
name: halves
datasets:
  - mnist
  - {name: dots, source: generated}
  - {name: dots, source: generated, fraction: 0.1}
  - {name: folder, data_dir: images, size: 8, skip_damaged: true}
grid:
  - {strategy: single, model: mlp, dataset: dots, dataset.fraction: [0.2, 0.1], batch: 32, dataset.limit: 640}
  - {strategy: single, model: mlp, dataset: folder, batch: 16}
"""
# Prints what becomes of each study on standard input: its cells and folders, or the sentence.
CODE = """
import json, sys
from omegaconf import OmegaConf
from src.config.mistakes import ConfigError
from src.study.cells import cells
from src.study.cells import folders

def composed(study):
    try:
        both = folders(study), cells(study["grid"], 1, study)
        return [OmegaConf.to_container(each) for each in both]
    except ConfigError as error:
        return str(error)

print(json.dumps({name: composed(study) for name, study in json.load(sys.stdin).items()}))
"""


def make_images(folder: Path) -> list[Path]:
    """A folder of images in two classes; one of them is damaged."""
    random, made = np.random.default_rng(0), []
    for split, count in (("train", 40), ("val", 8)):
        for label in ("cat", "dog"):
            (folder / split / label).mkdir(parents=True)
            for number in range(count):
                made.append(folder / split / label / f"{number}.png")
                Image.fromarray(random.integers(0, 256, (9, 9, 3), np.uint8)).save(made[-1])
    made[-1].write_bytes(b"no image")
    return made


def with_dots(folder: Path) -> Path:
    """Have the program in `folder` know the dataset."""
    shutil.copy2(ROOT / "tests/plugin/conf/dataset/dots.yaml", folder / "conf/dataset")
    return folder


@pytest.fixture(scope="module")
def composed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What becomes of the studies of all tests."""
    folder = tmp_path_factory.mktemp("program")
    for name in ("src", "conf"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    with_dots(folder)
    (folder / "own").mkdir()
    for name in ("train.bin", "test.bin"):
        (folder / "own" / name).touch()
    studies = {name: {"datasets": listed, "grid": [cell]} for name, (listed, cell, _) in MISTAKES.items()}
    both = {**CELL, "dataset.source": ["original", "generated"]}
    studies["both"] = {"datasets": [ORIGINAL, GENERATED, "mnist"], "grid": [both]}
    studies["one"] = {"datasets": [SMALL, "mnist"], "grid": [CELL, {**CELL, "dataset": "mnist"}]}
    code = [sys.executable, "-c", CODE]
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{ROOT}"}
    done = subprocess.run(
        code, cwd=folder, env=environment, input=json.dumps(studies), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_list_of_datasets_with_a_mistake_is_told_in_a_sentence(name: str, composed: dict[str, Any]) -> None:
    said = composed[name]
    assert isinstance(said, str) and MISTAKES[name][2] in said and "\n" not in said, said


def test_a_cell_gets_the_overrides_by_which_its_run_finds_what_was_prepared(composed: dict[str, Any]) -> None:
    folders, cells = composed["one"]
    small = "dots-generated-fraction=0.1-generator_seed=3"
    words = "dots 'source=generated' 'fraction=0.1' 'generator_seed=3'"
    assert folders == {small: {"name": "dots", "words": words}, "mnist": {"name": "mnist", "words": "mnist"}}
    dots, mnist = cells.values()
    assert (dots["folder"], dots["dataset"], dots["data_source"]) == (small, "dots", "generated")
    assert "'dataset.source=generated' 'dataset.fraction=0.1' 'dataset.generator_seed=3'" in dots["overrides"]
    assert (mnist["folder"], mnist["data_source"]) == ("mnist", "original")
    assert "dataset." not in mnist["overrides"]


def test_original_and_stand_in_may_stand_in_one_study(composed: dict[str, Any]) -> None:
    folders, cells = composed["both"]
    assert list(folders) == ["dots", "dots-generated", "mnist"]
    assert {cell["data_source"]: cell["folder"] for cell in cells.values()} == {
        "original": "dots",
        "generated": "dots-generated",
    }
    assert not any("data_dir" in name + cell["overrides"] for name, cell in cells.items())


@pytest.mark.slow
def test_a_study_of_stand_ins_runs_from_generating_to_its_report(tmp_path: Path, mnist: None) -> None:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    tree = Tree(tmp_path)
    folder = with_dots(tree.folder)
    (folder / "conf/study/halves.yaml").write_text(STUDY)
    images = make_images(folder / "images")
    tree.environment["SCALEGUIDE_MAX_CELLS"] = "3"
    completed = tree.run("dvc", "exp", "run", "-S", "study=halves")
    assert completed.returncode == 0, completed.stdout[-3000:] + completed.stderr[-3000:]
    names = {"mnist", "dots-generated", "dots-generated-fraction=0.1", "folder-size=8"}
    for place in ("downloads", "data", "prepared"):
        assert {path.name for path in (folder / place).iterdir() if path.is_dir()} == names
    cells = yaml.safe_load((folder / "params.yaml").read_text())["study"]["cells"]
    for name in cells:
        metrics = json.loads((folder / "results/halves/runs" / name / "metrics.json").read_text())
        found = ("folder", "original") if "folder" in name else ("dots", "generated")
        assert (metrics["dataset"], metrics["data_source"]) == found
    for table in (folder / "results/halves/tables").glob("*.csv"):
        head, *rows = table.read_text().splitlines()
        assert "data_source" in head
        assert all(("original" if "folder" in row else "generated") in row for row in rows), table
    again = tree.run("dvc", "repro")
    assert "Running stage" not in again.stdout, again.stdout
    assert "all 3 runs were measured before" in tree.run("python", "-m", "src.plan").stdout
    # The user's own images are seen to change, by what `make run` does first.
    shutil.copy(images[0], images[1])
    assert tree.run("python", "-m", "src.software").returncode == 0
    assert "3 runs: about" in tree.run("python", "-m", "src.plan").stdout
    anew = tree.run("dvc", "repro", "--dry").stdout
    assert "Running stage 'fetch'" in anew, anew
