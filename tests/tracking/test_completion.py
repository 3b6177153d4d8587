"""What a store has missed is sent later: without a hole, without a double, with the times of then."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from src.run.tables import EPOCH_FIELDS
from src.tracking import live_tracker
from src.tracking.completion import send_unsent
from src.tracking.mlflow_run import MLflowRun
from src.tracking.points import Point
from src.tracking.unsent import RunNote
from tests.tracking.recorded import STARTED, ended, evaluation, history, opened, rank, step, table


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/mlflow.db"


class Away:
    """A store that does nothing, or does what is asked without an answer that arrives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loses: str | None = None
        for name in ("create_run", "log_batch", "log_artifact", "set_terminated"):
            self._wrap(monkeypatch, name, getattr(MlflowClient, name))

    def _wrap(self, monkeypatch: pytest.MonkeyPatch, name: str, request: Any) -> None:
        def asked(*arguments: Any, **named: Any) -> Any:
            if self.loses == "request":
                raise ConnectionError("away")
            answer = request(*arguments, **named)
            if self.loses == "answer":
                raise ConnectionError("the answer was lost")
            return answer

        monkeypatch.setattr(MlflowClient, name, asked)


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Away:
    return Away(monkeypatch)


def only_run(client: MlflowClient) -> Any:
    """The one run that the store has."""
    (experiment,) = [each for each in client.search_experiments() if each.name == "scaleguide"]
    (run,) = client.search_runs([experiment.experiment_id])
    return run


@pytest.mark.parametrize("loses", ["request", "answer"])
@pytest.mark.parametrize("begin", ["open", "train", "end"])
def test_whatever_is_lost_each_point_is_there_once(
    store: MlflowClient, away: Away, uri: str, monkeypatch: pytest.MonkeyPatch, until, loses: str, begin: str
) -> None:
    monkeypatch.setattr(live_tracker, "SEND_SECONDS", 0.01)
    folder = Path("run")
    away.loses = loses if begin == "open" else None
    tracker = opened(folder)
    tracker.follow(folder, [0, 1])
    assert (tracker.run_id is None) == (begin == "open")
    if begin != "open":
        for number in (0, 1):
            rank(folder, number, step(1, 4.0))
        until(lambda: history(store, tracker.run_id, "train/loss"), 20, "the first step")
    away.loses = loses if begin != "end" else None
    for number in (0, 1):
        rank(folder, number, step(1, 4.0), step(2, 3.0))
    metrics = ended(folder, [4.0, 3.0, 2.0])
    away.loses = loses
    tracker.log_results(folder, metrics)
    assert not tracker.close("FINISHED", folder)
    away.loses = None
    assert send_unsent(uri) == 1
    run = only_run(store)
    assert history(store, run.info.run_id, "train/loss") == [(1, 4.0), (2, 3.0), (3, 2.0)]
    assert history(store, run.info.run_id, "samples_per_second") == [(0, 800.0)]
    assert (run.info.status, run.info.start_time) == ("FINISHED", STARTED * 1000)
    assert len(run.data.params) > 20
    assert len(store.list_artifacts(run.info.run_id)) == 7
    assert not Path("mlflow.db.unsent").exists()
    assert send_unsent(uri) == 0


def test_the_thread_goes_on_after_the_last_point_that_the_store_has(
    store: MlflowClient, away: Away, uri: str
) -> None:
    run = MLflowRun(RunNote(uri, "run", STARTED, {}), new=True)
    run.open()
    points = [Point("train/loss", float(i), i, STARTED + i) for i in range(1, 2501)]
    run.send(points[:10])
    away.loses = "answer"
    with pytest.raises(ConnectionError):
        run.send(points[:1500])
    away.loses = "request"
    with pytest.raises(ConnectionError):
        run.send(points[:2000])
    away.loses = None
    run.send(points)
    assert history(store, run.run_id, "train/loss") == [(i, float(i)) for i in range(1, 2501)]


def test_a_run_whose_parent_was_killed_is_completed_by_the_next(store: MlflowClient, uri: str) -> None:
    folder = Path("run")
    tracker = opened(folder)
    run_id = tracker.run_id
    for number in (0, 1):
        rank(folder, number, step(1, 4.0), step(2, 3.0))
    table(folder / "ranks" / "0" / "epochs.csv", EPOCH_FIELDS, [evaluation(2, 0.75)])
    assert send_unsent(uri) == 0, "its parent lives"
    assert store.get_run(run_id).info.status == "RUNNING"
    assert tracker._file is not None
    # As the kernel does at the end of a process.
    tracker._abandoned = True
    tracker._file.close()
    assert send_unsent(uri) == 1
    run = store.get_run(run_id)
    assert run.info.status == "KILLED"
    assert history(store, run_id, "train/loss") == [(1, 4.0), (2, 3.0)]
    assert history(store, run_id, "evaluation/accuracy") == [(2, 0.75)]


@pytest.mark.parametrize("fate", ["removed", "replaced", "moved up"])
def test_a_directory_that_holds_another_run_is_left_alone(
    store: MlflowClient, away: Away, uri: str, fate: str
) -> None:
    folder = Path("run.partial")
    tracker = opened(folder)
    run_id = tracker.run_id
    ended(folder, [4.0, 3.0])
    away.loses = "request"
    assert not tracker.close("FINISHED", folder)
    away.loses = None
    if fate == "moved up":
        # The directory of a run that replaces an older one.
        folder.rename("run")
    elif fate == "removed":
        shutil.rmtree(folder)
    else:
        (folder / "environment.json").write_text('{"started": 5.0}')
    assert send_unsent(uri) == (fate == "moved up")
    run = store.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert len(history(store, run_id, "train/loss")) == (2 if fate == "moved up" else 0)
