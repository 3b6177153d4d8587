"""`make ui` serves the project's store, or says where the server's UI is."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from mlflow import MlflowClient

from src import ui


def test_a_servers_ui_is_where_the_server_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking.example:5000")
    assert ui.main([]) == 0
    assert "http://tracking.example:5000" in capsys.readouterr().out


def test_a_port_that_is_taken_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert ui.main(["--port", str(port)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: port {port}: ") and line.endswith("make ui PORT=5001")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_ui_serves_a_prepared_store_and_opens_as_model_training(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    served: list[str] = []
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr("src.tracking.store.project_folder", lambda: tmp_path)
    monkeypatch.setattr("os.execv", lambda program, words: served.extend(words))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ui.main(["--port", str(port)])
    assert (tmp_path / "mlflow.db").exists()
    assert served[served.index("--backend-store-uri") + 1] == f"sqlite:///{tmp_path}/mlflow.db"
    assert served[served.index("--host") + 1] == "127.0.0.1"
    out = capsys.readouterr().out
    assert (
        f"http://127.0.0.1:{port}/#/experiments/1/runs?workflowType=machine_learning&viewStateShareKey=scaleguide"
        in out
    )
    # A deleted experiment is no reason not to look at what else there is.
    MlflowClient(f"sqlite:///{tmp_path}/mlflow.db").delete_experiment("1")
    ui.main(["--port", str(port)])
    printed = capsys.readouterr()
    assert f"http://127.0.0.1:{port}/#/experiments?workflowType=machine_learning" in printed.out
    assert "mlflow experiments restore --experiment-id 1` restores it" in printed.err
