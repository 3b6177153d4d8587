"""A study's cell that can't be run here is recorded with its reason, and no figure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from src.measure.metrics import KEYS
from src.report.runs import load_run
from tests.support import answer

MANY = ("strategy=ddp", "workers=100000", "batch=100000", "hardware.device=cpu")


@pytest.fixture
def in_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[Path, object]:
    """The folder, and a function that runs a command in it and returns its status and its line."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str]:
        code = answer(*MANY, "out=run", *words)
        (line,) = capsys.readouterr().err.splitlines()
        return code, line

    return tmp_path, run


def test_a_cell_of_a_study_is_skipped_and_says_why(in_a_folder) -> None:
    folder, run = in_a_folder
    code, line = run("tracking.study=some")
    assert code == 0 and line.startswith("skipped: workers=100000: there are")
    metrics = json.loads((folder / "run/metrics.json").read_text())
    assert metrics.keys() == {*KEYS, "error"}
    assert metrics["status"] == "skipped" and metrics["workers"] == 100000
    assert metrics["samples_per_second"] is None
    read = load_run("cell", {}, folder / "run")
    assert read.status == "skipped" and f"skipped: {read.error}" == line
    # A machine that can run it, or a later version, may write there.
    assert run("tracking.study=some")[0] == 0


@pytest.mark.parametrize(
    "words", [(), ("tracking.study=some", "-m"), ("tracking.study=some", "--cfg", "job")]
)
def test_elsewhere_it_is_a_mistake_and_leaves_nothing(in_a_folder, words: tuple[str, ...]) -> None:
    folder, run = in_a_folder
    code, line = run(*words)
    assert code == 2 and line.startswith("error: workers=100000: there are")
    assert list(folder.iterdir()) == []
