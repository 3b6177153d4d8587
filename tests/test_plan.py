"""How many cells of a study are to be measured, and for how long, is said before it starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from src import plan
from src.measure import environment
from src.study.configurations import configurations
from tests.support import ROOT

LIMIT = "on their devices (max_minutes, hardware.grace_minutes)"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the repository's params.yaml, and no results."""
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def measure(folder: Path, count: int, *, software: dict[str, object] | None = None) -> None:
    """Results of the first `count` cells, of 30 s each."""
    cells = yaml.safe_load((folder / "params.yaml").read_text())["study"]["cells"]
    known = dict(configurations(cells))
    for name, cell in list(cells.items())[:count]:
        config = known[cell["configuration"]]
        run = folder / "results/quick/runs" / name
        run.mkdir(parents=True, exist_ok=True)
        metrics = {
            "status": "ok", "strategy": config.strategy["name"], "model": "cnn", "dataset": "mnist",
            "data_source": "original", "hardware": "local", "workers": cells[name].get("workers", 1),
            "batch": 128, "epochs": 2.0, "train_seconds": 20.0, "total_seconds": 30.0,
        }  # fmt: skip
        (run / "metrics.json").write_text(json.dumps(metrics))
        seen = environment.describe(config) | ({"software": software} if software else {})
        (run / "environment.json").write_text(json.dumps(seen))


def test_of_a_new_study_the_limit_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan.main([]) == 0
    # Twelve cells of 2 x 5 + 10 minutes, each of which is measured once more where others have disturbed it.
    assert capsys.readouterr().out == f"study quick: 12 runs: at most 8 h {LIMIT}\n"


def test_what_was_measured_by_this_software_is_not_counted(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measure(folder, 2)
    plan.main([])
    said = capsys.readouterr().out
    assert said.startswith("study quick: 2 of 12 were finished before, and are taken as they are; 10 runs: ")
    assert said.endswith(f"at most 6 h 40 min {LIMIT}\n")
    measure(folder, 12)
    plan.main([])
    assert capsys.readouterr().out == "study quick: all 12 runs were measured before\n"
    measure(folder, 12, software={"files": {}, "libraries": {"torch": "0.4"}})
    plan.main([])
    assert capsys.readouterr().out.startswith("study quick: 12 runs: ")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["quik"], "error: study=quik: no such study; there are accuracy, "),
        (["quik"], "; did you mean quick?"),
    ],
)
def test_a_mistyped_study_is_answered(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert plan.main(words) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("text", ["study: 5\n", "study: {name: it}\n", "{}\n"])
def test_without_cells_it_says_what_writes_them(
    folder: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (folder / "params.yaml").write_text(text)
    assert plan.main([]) == 2
    assert "holds no study with cells; `dvc exp run -S study=quick` writes one" in capsys.readouterr().err


@pytest.mark.slow
def test_a_study_of_conf_is_planned_with_its_repetitions(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert plan.main(["quick", "2"]) == 0
    # Each is measured once more where others have disturbed it.
    assert capfd.readouterr().out == f"study quick: 8 runs: at most 5 h 20 min {LIMIT}\n"
