"""A store that refuses isn't one that is away: each refusal has its sentence, and what is owed stays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from mlflow import MlflowClient

from src import ui
from src.tracking.completion import send_unsent
from src.tracking.refusals import StoreRefused, describe
from src.tracking.store import open_store, unsent_folder
from src.tracking.unsent import NoteFile, RunNote, ownerless_notes
from tests.tracking.recorded import STARTED, ended, opened

Serve = Callable[[int, str], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a server on loopback that answers all alike; its address has a user and a password."""
    servers: list[ThreadingHTTPServer] = []

    def start(status: int, body: str) -> str:
        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body.encode())

            do_GET = do_POST = answer

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://ann:s3cret@127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "sentence"),
    [
        (
            401,
            "You are not authenticated.",
            "refuses: set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or",
        ),
        (403, "no", "refuses: set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or"),
        (
            404,
            "<html>",
            "isn't there: what answers at MLFLOW_TRACKING_URI is no MLflow server, or another path of it",
        ),
        (
            200,
            "<html>",
            "isn't there: what answers at MLFLOW_TRACKING_URI is no MLflow server, or another path of it",
        ),
        (
            400,
            '{"error_code": "INVALID_PARAMETER_VALUE", "message": "not so"}',
            "refuses (INVALID_PARAMETER_VALUE",
        ),
        (503, "busy", "can't be reached ("),
    ],
)
def test_each_answer_has_its_sentence_and_the_run_stays_owed(
    serve: Serve,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    status: int,
    body: str,
    sentence: str,
) -> None:
    monkeypatch.setattr("src.tracking.store.ROOT", tmp_path)
    uri = serve(status, body)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    tracker = opened(Path("run"), "tracking.backend=server")
    assert tracker.run_id is None
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"warning: the MLflow store {sentence}") and "; training goes on" in line
    tracker.log_results(Path("run"), ended(Path("run"), [2.0]))
    assert not tracker.close("FINISHED", Path("run"))
    (note,) = unsent_folder(uri).glob("*.json")
    assert send_unsent(uri) == 0
    assert note.exists()
    said = capsys.readouterr().err
    assert "or given up by `python -m src.ui --drop`" in said
    assert "s3cret" not in line + said + note.read_text()


def test_a_rotated_password_strands_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("src.tracking.store.ROOT", tmp_path)
    file = NoteFile.create(RunNote("http://ann:old@127.0.0.1:9/ml", "run", STARTED, {}))
    file.close()
    found = [note for _, note in ownerless_notes("http://bob:n%40w@127.0.0.1:9/ml")]
    assert [note.uri for note in found] == ["http://bob:n%40w@127.0.0.1:9/ml"]
    assert not list(ownerless_notes("http://ann:old@127.0.0.1:9/other"))


def test_a_deleted_experiment_is_named_with_how_to_restore_it(
    store: MlflowClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    _, experiment = open_store(uri)
    store.delete_experiment(experiment)
    tracker = opened(Path("run"))
    assert tracker.run_id is None
    restore = (
        f"`MLFLOW_TRACKING_URI={uri} mlflow experiments restore --experiment-id {experiment}` restores it"
    )
    assert restore in capsys.readouterr().err
    with pytest.raises(StoreRefused):
        open_store(uri)
    tracker.log_results(Path("run"), ended(Path("run"), [2.0]))
    assert not tracker.close("FINISHED", Path("run"))
    assert send_unsent(uri) == 0 and list(unsent_folder(uri).glob("*.json"))
    store.restore_experiment(experiment)
    assert send_unsent(uri) == 1 and not unsent_folder(uri).exists()


def test_a_run_that_was_deleted_is_not_made_again(
    store: MlflowClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    tracker = opened(Path("run"))
    run_id = str(tracker.run_id)
    store.delete_run(run_id)
    tracker._abandoned = True
    assert tracker._file is not None
    tracker._file.close()
    assert send_unsent(uri) == 0
    assert (
        capsys.readouterr().out == "note: the MLflow run run was deleted in the store, and isn't sent again\n"
    )
    assert not unsent_folder(uri).exists()
    assert store.search_runs([store.get_experiment_by_name("scaleguide").experiment_id]) == []


def test_the_user_drops_what_is_owed_here_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("src.tracking.store.ROOT", tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://ann:s3cret@127.0.0.1:9")
    for uri, folder in (("http://127.0.0.1:9", "runs/mine"), ("http://127.0.0.1:8", "runs/other")):
        NoteFile.create(RunNote(uri, Path(folder).name, STARTED, {}, folder=folder)).close()
    (unsent_folder("http://127.0.0.1:9") / "broken.json").write_text("{")
    owned = NoteFile.create(RunNote("http://127.0.0.1:9", "running", STARTED, {}))
    assert ui.main(["--drop"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines[:2]) == [
        "dropped: a note that cannot be read",
        "dropped: mine, whose files are in runs/mine",
    ]
    assert lines[2] == "2 run(s) won't be sent to http://***@127.0.0.1:9"
    left = [note.name for _, note in ownerless_notes("http://127.0.0.1:8")]
    assert left == ["other"]
    owned.remove()


def test_a_database_without_its_driver_is_no_absence() -> None:
    said = describe(ModuleNotFoundError("No module named 'psycopg'", name="psycopg"))
    assert said == "needs the Python package psycopg, which isn't installed here"
