"""downloads/ holds exactly the raw files of the study's datasets."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from src.fetch import main


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with datasets `left` and `right` of one file each, and `made`, which has none."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCALEGUIDE_CACHE", str(tmp_path / "cache"))
    Path("conf/dataset").mkdir(parents=True)
    Path("own").mkdir()
    for name in ("left", "right"):
        Path("own", name).write_text(name)
        add(name, {name: hashlib.sha256(name.encode()).hexdigest()}, [{"path": "own/{file}"}])
    add("made", {}, [])
    return tmp_path


def add(name: str, files: dict[str, str], sources: list[dict[str, str]]) -> None:
    dataset = {
        "name": name,
        "reader": "a.read",
        "source": "original",
        "files": files,
        "sources": sources,
    }
    Path(f"conf/dataset/{name}.yaml").write_text(json.dumps(dataset))


def study(*names: str) -> None:
    Path("params.yaml").write_text(json.dumps({"study": {"datasets": list(names)}}))


def downloads() -> dict[str, str]:
    return {str(path): path.read_text() for path in Path("downloads").rglob("*") if path.is_file()}


def test_another_study_leaves_nothing_of_the_first() -> None:
    study("left", "right")
    assert main([]) == 0
    assert downloads() == {"downloads/left/left": "left", "downloads/right/right": "right"}
    Path("downloads/right/stray").write_text("of an earlier version")
    study("right")
    assert main([]) == 0
    assert downloads() == {"downloads/right/right": "right"}


def test_a_dataset_without_files_leaves_a_note_for_dvc() -> None:
    study("made")
    assert main([]) == 0
    assert list(downloads()) == ["downloads/made/none"]
    assert "made has no raw files" in downloads()["downloads/made/none"]


def test_a_bad_name_is_answered_with_the_nearest_before_anything_happens(
    capsys: pytest.CaptureFixture[str],
) -> None:
    study("left", "rihgt")
    assert main([]) == 2
    line = capsys.readouterr().err
    assert (
        line == "error: unknown dataset 'rihgt': conf/dataset has left, made, right; did you mean 'right'?\n"
    )
    assert not Path("downloads").exists()


@pytest.mark.parametrize("text", [None, "", "study: {}", "study: {datasets: left}", "study: ["])
def test_params_that_list_no_datasets_are_answered_in_one_line(
    capsys: pytest.CaptureFixture[str], text: str | None
) -> None:
    if text is not None:
        Path("params.yaml").write_text(text)
    assert main([]) == 2
    line = capsys.readouterr().err
    assert line.startswith("error: params.yaml")
    assert line.count("\n") == 1


def test_data_that_cannot_be_had_are_one_line_and_exit_1(project: Path) -> None:
    Path("own/left").write_text("altered")
    study("left")
    root = Path(__file__).parents[2]
    completed = subprocess.run(
        [sys.executable, "-m", "src.fetch"],
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
    )
    assert completed.returncode == 1
    assert completed.stderr.splitlines()[-1].startswith(
        "error: left: left could not be fetched from any source: own/left (its"
    )
    assert "Traceback" not in completed.stderr
    assert downloads() == {}


def test_help_tells_where_files_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert "SCALEGUIDE_CACHE" in capsys.readouterr().out
