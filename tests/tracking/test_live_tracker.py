"""What MLflow holds after a run; and that training never waits for a store that is away."""

from __future__ import annotations

import json
import time
from modulefinder import ModuleFinder
from pathlib import Path

import pytest
from mlflow import MlflowClient

from src.config.schema import flatten
from src.tracking import live_tracker, sweep
from src.tracking.live_tracker import ParentTracker
from tests.support import ROOT
from tests.tracking.recorded import STARTED, chosen, ended, history, opened, rank, step

# Nothing listens on the discard port.
AWAY = "http://127.0.0.1:9"


def test_a_run_has_its_settings_as_parameters_and_tags_to_search_by(store: MlflowClient) -> None:
    tracker = opened(Path("run"), "batch=64", "optimizer.lr=0.05", "tracking.study=quick")
    run = store.get_run(tracker.run_id)
    params = run.data.params
    assert (params["batch"], params["optimizer.lr"], params["strategy.bucket_mb"]) == ("64", "0.05", "25")
    assert (params["strategy"], params["seed"], params["workers"]) == ("ddp", "0", "2")
    described = {
        "allowed",
        "supports",
        "sources",
        "files",
        "entry",
        "launcher",
        "reader",
        "framework",
        "parity",
    }
    assert not [key for key in params if described & set(key.split("."))]
    # Neither what nobody has set, nor where things go.
    assert not {"resume", "dataset.limit", "out", "tracking.study"} & params.keys()
    expected = {"strategy": "ddp", "framework": "torch", "model": "cnn", "dataset": "mnist", "study": "quick"}
    expected["data_source"] = "original"
    assert run.data.tags.items() >= {**expected, "workers": "2", "hardware": "local", "cell": "run"}.items()
    assert (run.info.status, run.info.run_name) == ("RUNNING", "run")
    tracker.close("KILLED", Path("run"))


def test_a_runs_page_has_source_user_commit_description_and_dataset(
    store: MlflowClient, mnist: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = ["/usr/bin/python3", "-m", "src.train", "strategy.partition=[1, 2]", "-m", "batch=1,2"]
    monkeypatch.setattr("sys.orig_argv", typed)
    monkeypatch.setenv("LOGNAME", "ada")
    monkeypatch.setattr("src.tracking.run_page.git_commit", lambda folder: "c0ffee-dirty")
    tracker = opened(Path("run"), "dataset.limit=1280")
    run = store.get_run(tracker.run_id)
    tags = {key.removeprefix("mlflow."): value for key, value in run.data.tags.items()}
    assert tags["source.name"] == "src/train.py"
    assert tags["command"] == "python -m src.train 'strategy.partition=[1, 2]' -m batch=1,2"
    assert (tags["source.type"], tags["user"]) == ("LOCAL", "ada")
    assert (tags["source.git.commit"], tags["source.git.dirty"]) == ("c0ffee", "true")
    assert tags["note.content"].startswith("ddp trains cnn on mnist, batch 128, 2 cpu worker(s)")
    (entry,) = run.inputs.dataset_inputs
    assert (entry.dataset.name, len(entry.dataset.digest)) == ("mnist", 12)
    assert json.loads(entry.dataset.profile) == {"train_samples": 1280, "test_samples": 10000, "classes": 10}
    assert "npm" in entry.dataset.source
    tracker.close("KILLED", Path("run"))


@pytest.mark.parametrize("status", ["FINISHED", "FAILED", "KILLED"])
def test_an_ended_run_has_curves_figures_hardware_and_files(store: MlflowClient, status: str) -> None:
    tracker = opened(Path("run"), "batch=64")
    run_id = tracker.run_id
    metrics = ended(Path("run"), [2.0, None, 1.0])
    tracker.log_results(Path("run"), metrics)
    assert tracker.close(status, Path("run"))
    run = store.get_run(run_id)
    assert (run.info.status, run.info.start_time) == (status, STARTED * 1000)
    assert history(store, run_id, "train/loss") == [(1, 2.0), (3, 1.0)]
    assert history(store, run_id, "evaluation/accuracy") == [(3, 0.75)]
    assert history(store, run_id, "train/step_seconds") == [(1, 0.5), (2, 0.5), (3, 0.5)]
    figures = {name: value for name, value in run.data.metrics.items() if "/" not in name}
    # Neither settings, nor once more what the curves end with, nor what was not measured.
    assert figures == {
        **{"startup_seconds": 10.0, "samples_per_second": 800.0, "train_seconds": 2.0},
        **{"total_seconds": 20.0, "cpu_wait_fraction": 0.0, "steal_fraction": 0.0},
    }
    system = {name: value for name, value in run.data.metrics.items() if name.startswith("system/")}
    # By these names MLflow's own monitor of the hardware logs.
    assert system["system/cpu_utilization_percentage"] == 25
    assert system["system/system_memory_usage_megabytes"] == 5
    assert system["system/network_transmit_megabytes"] == 1
    assert system["system/rank_0_cpu0_utilization_percentage"] == 50
    assert history(store, run_id, "system/rank_1_cpu1_memory_usage_megabytes") == [(0, 3), (1, 3)]
    names = {entry.path for entry in store.list_artifacts(run_id)}
    assert names == {
        "config.yaml",
        "metrics.json",
        "environment.json",
        "logs",
        "steps.csv",
        "epochs.csv",
        "trace.csv",
    }
    assert [entry.path for entry in store.list_artifacts(run_id, "logs")] == ["logs/rank-1.log"]
    assert "ok: accuracy 0.7500" in run.data.tags["mlflow.note.content"]
    assert not Path("mlflow.db.unsent").exists()


def test_steps_are_sent_while_the_ranks_train_and_not_again_at_the_end(
    store: MlflowClient, monkeypatch: pytest.MonkeyPatch, until
) -> None:
    monkeypatch.setattr(live_tracker, "SEND_SECONDS", 0.02)
    folder = Path("run")
    tracker = opened(folder)
    tracker.follow(folder, [0, 1])
    run_id = tracker.run_id
    rank(folder, 0, step(1, 2.0), step(2, 1.0))
    rank(folder, 1, step(1, 4.0))
    until(lambda: history(store, run_id, "train/loss"), 20, "the first step")
    # The mean over the global batch, as soon as all ranks have it.
    assert history(store, run_id, "train/loss") == [(1, 3.0)]
    rank(folder, 1, step(1, 4.0), step(2, 2.0))
    until(lambda: len(history(store, run_id, "train/loss")) == 2, 20, "the second step")
    metrics = ended(folder, [3.0, 1.5, 1.25])
    tracker.log_results(folder, metrics)
    assert tracker.close("FINISHED", folder)
    assert history(store, run_id, "train/loss") == [(1, 3.0), (2, 1.5), (3, 1.25)]


def test_a_discarded_attempt_says_so(store: MlflowClient) -> None:
    tracker = opened(Path("run"))
    tracker.log_results(Path("run"), {})
    assert tracker.close("KILLED", Path("run"), discarded=True)
    assert store.get_run(tracker.run_id).data.tags["discarded"] == "disturbed"


def test_the_runs_of_a_sweep_stand_under_one_that_says_what_was_swept(store: MlflowClient) -> None:
    sweep.begin_sweep(
        f"sqlite:///{Path.cwd()}/mlflow.db", ["batch=32,64", "model=cnn,mlp"], 4, started=STARTED
    )
    trackers = [opened(Path(name), f"batch={name}", sweep=True) for name in ("32", "64")]
    runs = [store.get_run(tracker.run_id) for tracker in trackers]
    (parent_id,) = {run.data.tags["mlflow.parentRunId"] for run in runs}
    found = store.get_run(parent_id)
    assert (found.info.status, found.info.run_name) == ("RUNNING", "batch=32,64 model=cnn,mlp")
    assert found.data.tags["mlflow.note.content"] == "Sweep over batch=32,64 model=cnn,mlp: 4 runs."
    for tracker, name in zip(trackers, ("32", "64"), strict=True):
        tracker.close("FINISHED", Path(name))
    sweep.close_sweep("FINISHED")
    assert store.get_run(parent_id).info.status == "FINISHED"
    assert sweep.sweep_key() is None, "the next sweep gets its own"
    sweep.close_sweep("FINISHED")
    alone = opened(Path("alone"))
    assert "mlflow.parentRunId" not in store.get_run(alone.run_id).data.tags
    alone.close("FINISHED", Path("alone"))
    assert not Path("mlflow.db.unsent").exists()


def test_a_rank_can_reach_neither_mlflow_nor_tracking() -> None:
    finder = ModuleFinder(path=[str(ROOT)])
    for module in ("src.worker", "src.measure.recorder", "src.runtime.common.context"):
        finder.import_hook(module)
    assert "src.measure.recorder" in finder.modules
    assert not [name for name in finder.modules if name.startswith("src.tracking")]
    assert "mlflow" not in finder.badmodules


def test_no_backend_logs_nothing(tmp_path: Path) -> None:
    tracker = ParentTracker(chosen("tracking.backend=none"))
    tracker.start(tmp_path, started=STARTED)
    assert tracker.uri is tracker.run_id is None
    tracker.log_results(tmp_path, {"accuracy": 1.0})
    assert tracker.close("FINISHED", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_away_costs_one_warning_and_no_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("src.tracking.store.ROOT", tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", AWAY)
    begun = time.monotonic()
    tracker = opened(Path("run"), "tracking.backend=server")
    assert tracker.run_id is None
    said = capsys.readouterr().err
    assert said.startswith("warning: the MLflow store can't be reached (") and "); training goes on" in said
    tracker.log_results(Path("run"), ended(Path("run"), [2.0]))
    assert not tracker.close("FINISHED", Path("run"))
    assert capsys.readouterr().err == ""
    assert time.monotonic() - begun < live_tracker.SERVER_PATIENCE_SECONDS
    # What is to be sent later is remembered.
    assert len(list((tmp_path / "runs" / ".unsent").glob("*.json"))) == 1


def test_flatten_keeps_lists_and_empty_mappings_as_values() -> None:
    assert flatten({"a": {"b": {"c": 1}, "d": [2, 3]}, "e": {}, "f": None}) == {
        "a.b.c": 1,
        "a.d": [2, 3],
        "e": {},
        "f": None,
    }
