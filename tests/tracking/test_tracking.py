"""What MLflow holds after a run; and that training never waits for a store that is away."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from src.config import Config
from src.config.schema import flatten
from src.tracking import store as tracking_store
from src.tracking.parent import SWEEP_RUN, ParentTracker, close_sweep
from src.tracking.rank import RankTracker
from tests.support import config

# Nothing listens on the discard port.
AWAY = "http://127.0.0.1:9"
PATIENCE_SECONDS = 30


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An empty sqlite store; making its tables takes seconds."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return f"sqlite:///{path}"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An own working directory, and no variable of the tests' environment or left in it."""
    before = dict(os.environ)
    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_TRACKING_URI", SWEEP_RUN):
        monkeypatch.delenv(name, raising=False)
    yield
    for name in set(os.environ) - set(before):
        del os.environ[name]


@pytest.fixture
def here(store: str, monkeypatch: pytest.MonkeyPatch) -> MlflowClient:
    """The store is the one that runs go to by default."""
    monkeypatch.setattr(tracking_store, "DEFAULT_URI", store)
    return MlflowClient(store)


def chosen(*words: str) -> Config:
    return config("strategy=ddp", "workers=2", "tracking.backend=sqlite", *words)


def opened(*words: str, sweep: bool = False) -> ParentTracker:
    tracker = ParentTracker(chosen(*words))
    tracker.open(sweep=sweep)
    return tracker


def test_a_run_has_its_configuration_flat_and_tags_to_search_by(here: MlflowClient) -> None:
    tracker = opened("batch=64", "optimizer.lr=0.01", "tracking.study=quick")
    run = here.get_run(tracker.run_id)
    params = run.data.params
    assert (params["batch"], params["optimizer.lr"], params["strategy.bucket_mb"]) == ("64", "0.01", "25")
    assert not [key for key in params if "allowed" in key or "supports" in key or "sources" in key]
    expected = {"strategy": "ddp", "framework": "torch", "model": "cnn", "dataset": "mnist", "study": "quick"}
    assert run.data.tags.items() >= {**expected, "workers": "2", "hardware": "local"}.items()
    assert run.info.status == "RUNNING"
    assert run.info.run_name.startswith("ddp-cnn-mnist-w2-b64-s0")
    tracker.close("KILLED", Path("nowhere"))


@pytest.mark.parametrize("status", ["FINISHED", "FAILED", "KILLED"])
def test_a_closed_run_has_its_files_figures_and_hardware_trace(
    here: MlflowClient, tmp_path: Path, status: str
) -> None:
    tracker = opened()
    (tmp_path / "run" / "logs").mkdir(parents=True)
    (tmp_path / "run" / "logs" / "rank-1.log").write_text("said")
    (tmp_path / "run" / "metrics.json").write_text("{}")
    row: dict[str, Any] = {"rank": 1, "device": "cpu1", "power_watts": None}
    trace = [{**row, "time": 10.0 + i, "utilization": 0.5 + i / 4, "memory_bytes": 3e6} for i in range(2)]
    metrics = {"accuracy": 0.75, "loss": None, "status": "ok", "workers": 2}
    (tmp_path / "run" / "environment.json").write_text("{}")
    tracker.log_results(tmp_path / "run", metrics, trace)
    assert tracker.close(status, tmp_path / "run")
    run = here.get_run(tracker.run_id)
    assert run.info.status == status
    assert run.data.metrics["accuracy"] == 0.75 and run.data.metrics["workers"] == 2
    assert "loss" not in run.data.metrics, "what was not measured is not logged"
    history = here.get_metric_history(tracker.run_id, "system/rank_1_cpu_utilization_percentage")
    assert [(point.value, point.timestamp, point.step) for point in history] == [
        (50, 10_000, 0),
        (75, 11_000, 1),
    ]
    assert run.data.metrics["system/rank_1_cpu_memory_usage_megabytes"] == 3
    names = {entry.path for entry in here.list_artifacts(tracker.run_id)}
    assert names == {"metrics.json", "environment.json", "logs"}
    assert [entry.path for entry in here.list_artifacts(tracker.run_id, "logs")] == ["logs/rank-1.log"]


def test_the_runs_of_a_sweep_stand_under_one_parent_run(here: MlflowClient) -> None:
    first, second = opened("batch=32", sweep=True), opened("batch=64", sweep=True)
    parents = [here.get_run(t.run_id).data.tags["mlflow.parentRunId"] for t in (first, second)]
    assert parents[0] == parents[1] == os.environ[SWEEP_RUN]
    assert here.get_run(parents[0]).info.status == "RUNNING"
    close_sweep("FINISHED")
    assert here.get_run(parents[0]).info.status == "FINISHED"
    assert SWEEP_RUN not in os.environ, "the next sweep gets its own"
    close_sweep("FINISHED")
    alone = opened()
    assert "mlflow.parentRunId" not in here.get_run(alone.run_id).data.tags


def test_rank_0_logs_steps_and_epochs_into_the_parents_run(here: MlflowClient, store: str) -> None:
    tracker = opened()
    rank = RankTracker(store, tracker.run_id)
    # More than one log_batch call may hold.
    rank.on_steps([{"step": i, "loss": 2.0 - i / 1000, "seconds": 0.5} for i in range(1, 601)])
    rank.on_steps([{"step": 601, "loss": None, "seconds": 0.25}])
    assert not here.get_run(tracker.run_id).data.metrics, "nothing is sent while the clock runs"
    row = {"seconds": 9.0, "train_loss": None, "loss": 0.5, "accuracy": 0.9}
    rank.on_evaluation({"epoch": 1.0, **row}, 10)
    losses = here.get_metric_history(tracker.run_id, "step/loss")
    assert sorted(point.step for point in losses) == list(range(1, 601))
    metrics = here.get_run(tracker.run_id).data.metrics
    assert metrics["step/loss"] == pytest.approx(1.4)
    assert metrics["step/seconds"] == 0.25
    assert (metrics["epoch/loss"], metrics["epoch/accuracy"]) == (0.5, 0.9)
    rank.on_evaluation({"epoch": 1.5, **row, "accuracy": 0.95}, 15)
    axes = {
        name: here.get_metric_history(tracker.run_id, f"{name}/accuracy") for name in ("epoch", "evaluation")
    }
    assert {name: [point.step for point in points] for name, points in axes.items()} == {
        "epoch": [1],
        "evaluation": [10, 15],
    }
    assert "epoch/train_loss" not in metrics


def test_another_store_is_named_by_the_environment(
    store: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tracking_store, "DEFAULT_URI", "sqlite:///not-this-one.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    tracker = opened()
    assert tracker.uri == store
    assert MlflowClient(store).get_run(tracker.run_id).info.status == "RUNNING"
    assert not (tmp_path / "not-this-one.db").exists()


def test_no_backend_logs_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    tracker = opened("tracking.backend=none")
    assert tracker.uri is tracker.run_id is None
    tracker.log_results(tmp_path, {"accuracy": 1.0}, [])
    assert tracker.close("FINISHED", tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "ranks").mkdir()
    tracker.open_for_ranks(tmp_path, sweep=False)
    assert json.loads((tmp_path / "ranks" / "go.json").read_text()) == {"uri": None, "run_id": None}


@pytest.mark.slow
def test_a_server_that_is_away_costs_a_warning_and_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", AWAY)
    start = time.monotonic()
    tracker = opened("tracking.backend=server", sweep=True)
    assert tracker.run_id is None
    assert "warning: the MLflow store can't be reached" in capsys.readouterr().err
    tracker.log_results(tmp_path, {"accuracy": 1.0}, [])
    assert not tracker.close("FINISHED", tmp_path)
    rank = RankTracker(AWAY, "0123")
    rank.on_steps([{"step": 1, "loss": 1.0, "seconds": 0.1}])
    rank.on_evaluation({"epoch": 1, "loss": 1.0}, 10)
    stderr = capsys.readouterr().err
    assert stderr.count("warning:") == 1 and "Traceback" not in stderr
    assert time.monotonic() - start < PATIENCE_SECONDS


def test_flatten_keeps_lists_and_empty_mappings_as_values() -> None:
    assert flatten({"a": {"b": {"c": 1}, "d": [2, 3]}, "e": {}, "f": None}) == {
        "a.b.c": 1,
        "a.d": [2, 3],
        "e": {},
        "f": None,
    }
