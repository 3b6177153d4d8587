"""Ctrl-C as a run begins names the directory that it has made by then."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from src.launch import training
from tests.support import config


def test_ctrl_c_before_ranks_are_started_names_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise training.Interrupted

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training, "ParentTracker", interrupted)
    with pytest.raises(training.Interrupted):
        training.train(config("strategy=single", "out=run"), [], started=time.time(), sweep=False)
    assert Path("run/config.yaml").exists()
    assert capsys.readouterr().err == "interrupted; what was recorded is in run\n"
