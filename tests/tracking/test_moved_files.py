"""The project's own store follows a move of its folder; whatever else is in a store stays as it is."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from src import ui
from src.tracking import store as stores
from src.tracking.moved_files import keep_copy
from src.tracking.names import EXPERIMENT
from src.tracking.store import open_store
from src.tracking.study import add_figures
from tests.tracking.recorded import ended, opened


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], str]:
    """Takes a folder for the project's, and returns the address of the project's own store in it."""

    def make(folder: Path) -> str:
        monkeypatch.setattr(stores, "project_folder", lambda: folder)
        monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
        return f"sqlite:///{folder}/mlflow.db"

    return make


def trained(name: str = "run") -> str:
    """Track a run to its end, with files; return MLflow's id of it."""
    tracker = opened(Path(name))
    run_id = str(tracker.run_id)
    tracker.log_results(Path(name), ended(Path(name), [2.0]))
    assert tracker.close("FINISHED", Path(name))
    return run_id


def trained_in(folder: Path, empty_store: Path, project: Callable[[Path], str]) -> str:
    """Make a project's folder with a store, and track a run there; return MLflow's id of it."""
    folder.mkdir()
    shutil.copy(empty_store, folder / "mlflow.db")
    project(folder)
    return trained()


def test_a_second_copy_does_not_replace_the_first(empty_store: Path) -> None:
    assert len({keep_copy(empty_store), keep_copy(empty_store)}) == 2


def rows_of_others(database: Path) -> dict[str, list[Any]]:
    """All rows of a store but those of this project's experiment and its runs."""
    connection = sqlite3.connect(database)
    (own,) = connection.execute(
        "select experiment_id from experiments where name = ?", (EXPERIMENT,)
    ).fetchone() or (-1,)
    runs = {run for (run,) in connection.execute("select run_uuid from runs where experiment_id = ?", (own,))}
    found: dict[str, list[Any]] = {}
    for (table,) in connection.execute("select name from sqlite_master where type = 'table'").fetchall():
        cursor = connection.execute(f'select * from "{table}"')
        names = [column[0] for column in cursor.description]
        for row in cursor.fetchall():
            values = dict(zip(names, row, strict=True))
            ours = values.get("run_uuid") in runs or values.get("experiment_id") == own
            if not ours and not table.startswith(("input", "datasets")):
                found.setdefault(table, []).append(row)
    connection.close()
    return found


def test_files_of_runs_survive_a_moved_folder(
    empty_store: Path, tmp_path: Path, project: Callable[[Path], str], capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = tmp_path / "before", tmp_path / "after's %"
    run_id = trained_in(before, empty_store, project)
    before.rename(after)
    capsys.readouterr()
    client, experiment = open_store(project(after))
    said = capsys.readouterr().err
    found = re.fullmatch(
        r"note: the project was moved: .*/mlflow.db has the new addresses of 1 runs' .* it is (.*)\n",
        said,
    )
    assert found is not None, said
    assert open_store(project(after)) is not None and capsys.readouterr().err == "", "it is said once"
    assert "metrics.json" in {entry.path for entry in client.list_artifacts(run_id)}
    downloaded = client.download_artifacts(run_id, "logs/rank-1.log", str(tmp_path))
    assert Path(downloaded).read_text() == "said"
    # New runs, too, leave their files in the folder where the store now is.
    assert client.create_run(experiment).info.artifact_uri.startswith(f"{(after / 'mlartifacts').as_uri()}/")
    kept = sqlite3.connect(found[1])
    assert kept.execute("select artifact_uri from runs").fetchone()[0].startswith(before.as_uri())


def test_a_copy_of_the_project_leaves_the_original_alone(
    empty_store: Path, tmp_path: Path, project: Callable[[Path], str]
) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    run_id = trained_in(before, empty_store, project)
    shutil.copytree(before, after)
    client, experiment = open_store(project(after))
    assert client.get_run(run_id).info.artifact_uri.startswith(before.as_uri()), "its files are still there"
    assert client.create_run(experiment).info.artifact_uri.startswith(f"{(after / 'mlartifacts').as_uri()}/")
    assert MlflowClient(f"sqlite:///{before}/mlflow.db").list_artifacts(run_id)


def strangers(database: Path, files: Path) -> MlflowClient:
    """A store of other people's: files of its experiments lie in other folders called `mlartifacts`."""
    client = MlflowClient(f"sqlite:///{database}")
    for name, place in (
        ("theirs", files.as_uri()),
        ("gone", "file:///gone/mlartifacts"),
        ("bucket", "s3://bucket/mlartifacts"),
    ):
        experiment = client.create_experiment(name, place)
        run = client.create_run(experiment, tags={"scaleguide.key": "another project's"})
        if name == "theirs":
            client.log_text(run.info.run_id, "precious", "notes.txt")
    return client


def test_a_strangers_store_gets_the_run_and_nothing_else(
    empty_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "elsewhere"
    (place / "mlartifacts").mkdir(parents=True)
    shutil.copy(empty_store, place / "store.db")
    client = strangers(place / "store.db", tmp_path / "theirs" / "mlartifacts")
    before = rows_of_others(place / "store.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{place}/store.db")
    run_id = trained()
    assert rows_of_others(place / "store.db") == before
    assert client.get_run(run_id).info.status == "FINISHED"
    # Nor does a crash, after which the run is completed.
    crashed = opened(Path("crashed"))
    assert crashed.run_id is not None and crashed._file is not None
    crashed._abandoned = True
    crashed._file.close()
    trained("next")
    assert rows_of_others(place / "store.db") == before


def test_who_only_looks_leaves_a_strangers_store_as_it_is(
    empty_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    database = tmp_path / "store.db"
    shutil.copy(empty_store, database)
    strangers(database, tmp_path / "theirs" / "mlartifacts")
    before = database.read_bytes()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{database}")
    started: list[list[str]] = []
    monkeypatch.setattr(ui.os, "execv", lambda _, words: started.append(words))
    ui.main(["--port", "0"])
    assert started and "/#/experiments?workflowType" in capsys.readouterr().out
    add_figures([{"mlflow_run_id": "0" * 32, "speedup": 2.0}])
    assert database.read_bytes() == before
