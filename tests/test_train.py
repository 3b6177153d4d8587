"""What a run leaves: the contract's files and figures, an MLflow run, a telling exit status."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from src.data.order import steps_per_epoch
from src.measure.merge import KEYS
from src.measure.rank_files import EPOCH_FIELDS, STEP_FIELDS
from src.measure.sampler import FIELDS

ROOT = Path(__file__).parents[1]
PARITY = 1e-4
# 60 steps: 5 of warm-up and more than the 50 that a throughput needs.
STEPS = 60
SHORT = (
    *("dataset.limit=7680", "target_accuracy=0.3", "hardware.sample_seconds=0.1"),
    *("hardware.device=cpu", "hardware.share_devices=true"),
)
TINY = ("model=mlp", "dataset.limit=1280", "tracking.backend=none", "out=run")
FILES = {
    "config.yaml",
    "metrics.json",
    "steps.csv",
    "workers.csv",
    "epochs.csv",
    "trace.csv",
    "environment.json",
    "logs",
}
# What a synchronous CPU run must fill; a machine may lack counters of energy and traffic.
FILLED = {
    *("status", "framework", "strategy", "model", "dataset", "data_source", "hardware", "workers", "batch"),
    *("scaling", "microbatches", "seed", "epochs", "parameters", "train_seconds", "total_seconds"),
    *("startup_seconds", "seconds_per_epoch", "samples_per_second", "validation_samples_per_second"),
    *("step_seconds_median", "step_seconds_p25", "step_seconds_p75", "seconds_to_target", "steps_to_target"),
    *("loss", "accuracy", "train_accuracy", "utilization_mean", "utilization_max", "busy_fraction"),
    *("memory_mean_bytes", "memory_peak_bytes", "payload_bytes", "input_wait_fraction", "restarts"),
    "shared_device",
}
COSTED = {"saved_tensors_bytes", "flops_per_sample", "model_flops_utilization"}
# What TensorFlow's devices wait for each other, and Keras's `fit` for its input, can't be told.
UNTOLD = {"busy_fraction"}
MUST_FILL = {
    "single": FILLED | COSTED | {"mlflow_run_id"},
    "ddp": FILLED | COSTED,
    "mpi": FILLED | COSTED,
    "local_sgd": FILLED | COSTED,
    "parameter_server": FILLED - {"input_wait_fraction"}
    | COSTED
    | {"staleness_mean", "clock_gap_max", "helper_cpu_seconds"},
    "tf_single": FILLED,
    "tf_mirrored": FILLED - UNTOLD - {"input_wait_fraction"},
    "tf_custom": FILLED - UNTOLD,
    "tf_multiworker": FILLED - UNTOLD,
    "tf_model_split": FILLED - UNTOLD,
    "tf_mpi": FILLED,
    "tf_parameter_server": FILLED - {"input_wait_fraction"} | {"staleness_mean", "helper_cpu_seconds"},
}
# At the default rate stale gradients with momentum now and then leave a model that learns nothing.
STALE = {"tf_parameter_server": ("optimizer.lr=0.01",)}
# Processes that train.
RANKS = {
    "ddp": 2,
    "mpi": 2,
    "local_sgd": 2,
    "parameter_server": 2,
    "tf_multiworker": 2,
    "tf_mpi": 2,
}
# There is no pipeline; what is stale and helper processes some have alone.
MUST_BE_NULL = {"bubble_fraction", "staleness_mean", "clock_gap_max", "helper_cpu_seconds"}


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def metrics(folder: Path) -> dict[str, Any]:
    def refuse(word: str) -> None:
        raise ValueError(f"{word} is not JSON")

    return json.loads((folder / "metrics.json").read_text(), parse_constant=refuse)


def losses(folder: Path, rank: int = 0) -> list[float]:
    return [float(row["loss"]) for row in table(folder / "steps.csv") if row["rank"] == str(rank)]


def imported(text: str) -> set[str]:
    """Modules in the output of an interpreter under PYTHONPROFILEIMPORTTIME."""
    lines = [line for line in text.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}


@pytest.fixture(scope="module")
def runs(module_commands: Callable[[], Any], mnist: None) -> Callable[[str], Path]:
    """The folder of one short run a strategy, made when first asked for."""
    made: dict[str, Path] = {}

    def folder(strategy: str) -> Path:
        if strategy not in made:
            commands = module_commands()
            backend = "sqlite" if strategy == "single" else "none"
            words = (f"strategy={strategy}", f"tracking.backend={backend}", "out=run", *SHORT)
            words += STALE.get(strategy, ())
            done = commands.run(*words, PYTHONPROFILEIMPORTTIME="1")
            assert done.returncode == 0, [x for x in done.stderr.splitlines() if "import time:" not in x]
            (commands.folder / "stderr").write_text(done.stderr)
            made[strategy] = commands.folder / "run"
        return made[strategy]

    return folder


@pytest.mark.parametrize("strategy", MUST_FILL)
def test_every_key_is_there_and_filled_where_it_must_be(runs: Callable[[str], Path], strategy: str) -> None:
    found = metrics(runs(strategy))
    assert tuple(found) == KEYS
    null = {key for key, value in found.items() if value is None}
    assert not null & MUST_FILL[strategy]
    assert null >= MUST_BE_NULL - MUST_FILL[strategy]
    assert (found["status"], found["strategy"], found["epochs"]) == ("ok", strategy, 1)
    assert (found["dataset"], found["data_source"], found["batch"]) == ("mnist", "original", 128)
    assert found["shared_device"] is True
    # Two convolutions, two dense layers: 20*26 + 50*501 + 500*801 + 10*501 weights and biases.
    assert found["parameters"] == 520 + 25_050 + 400_500 + 5_010
    assert 0.3 <= found["accuracy"] <= 1
    # The one evaluation found the target reached, at the end; files round to nanoseconds.
    assert found["seconds_to_target"] == pytest.approx(found["train_seconds"], rel=0.05)
    assert found["steps_to_target"] == STEPS
    assert found["startup_seconds"] + found["train_seconds"] < found["total_seconds"]
    assert 0 < found["step_seconds_p25"] <= found["step_seconds_median"] <= found["step_seconds_p75"]
    assert 0 < found["utilization_mean"] <= found["utilization_max"]
    assert null >= FILLED - MUST_FILL[strategy]
    for key in {"input_wait_fraction", "busy_fraction"} - null:
        assert 0 <= found[key] <= 1
    # A gradient of 4 bytes a parameter, each worker and step; one device sends nothing. A model that is cut
    # before its fifth of seven operations sends 50 maps of 4x4 a sample, and gets their gradients back. With
    # the gradients an MPI rank hands over its loss, its correct answers and whether it is late.
    gradients = 2 * STEPS * 4 * found["parameters"]
    sent = {"single": 0, "tf_single": 0, "tf_model_split": 2 * STEPS * 128 * 4 * 50 * 4 * 4}
    # Parameters are fetched, and gradients pushed, by half a batch each.
    sent |= dict.fromkeys(("tf_parameter_server", "parameter_server"), 2 * gradients)
    # Every eighth step; what an evaluation needs isn't counted.
    sent["local_sgd"] = gradients * (STEPS // 8) / STEPS
    sent["tf_mpi"] = gradients + 2 * STEPS * 4 * 3
    assert found["payload_bytes"] == sent.get(strategy, gradients)


# Each rank has losses of its own, and those that take turns other files as well.
UNEQUAL = {"tf_parameter_server", "parameter_server", "local_sgd"}


@pytest.mark.parametrize("strategy", ["mpi", "tf_mpi"])
def test_ranks_of_mpi_tell_the_mean_of_their_times(runs: Callable[[str], Path], strategy: str) -> None:
    folder = runs(strategy)
    told = json.loads((folder / "environment.json").read_text())["mean_rank_train_seconds"]
    assert told == pytest.approx(metrics(folder)["train_seconds"], rel=0.2)


@pytest.mark.parametrize("strategy", MUST_FILL.keys() - UNEQUAL)
def test_every_file_of_the_contract_is_there(runs: Callable[[str], Path], strategy: str) -> None:
    folder = runs(strategy)
    ranks = RANKS.get(strategy, 1)
    kept = FILES | ({"partition.json"} if strategy == "tf_model_split" else set())
    assert {path.name for path in folder.iterdir()} == kept
    assert {path.name for path in (folder / "logs").iterdir()} == {f"rank-{n}.log" for n in range(ranks)}
    steps = table(folder / "steps.csv")
    assert tuple(steps[0]) == ("rank", *STEP_FIELDS)
    for rank in range(ranks):
        mine = [row for row in steps if row["rank"] == str(rank)]
        # Warm-up steps are rows too.
        assert [int(row["step"]) for row in mine] == list(range(1, STEPS + 1))
        assert {(row["epoch"], row["samples"], row["staleness"]) for row in mine} == {
            ("1", str(128 // ranks), "")
        }
        assert losses(folder, rank) == losses(folder, 0)
    found = metrics(folder)
    taken = sum(float(row["seconds"]) for row in steps if row["rank"] == "0")
    assert found["train_seconds"] == pytest.approx(taken, rel=0.05)
    epochs = table(folder / "epochs.csv")
    assert tuple(epochs[0]) == EPOCH_FIELDS
    assert [float(row["epoch"]) for row in epochs] == [1]
    assert float(epochs[0]["accuracy"]) == found["accuracy"]
    # The mean over the epoch's steps, in which every sample stood once.
    assert float(epochs[0]["train_loss"]) == pytest.approx(sum(losses(folder)) / STEPS, rel=1e-4)
    trace = table(folder / "trace.csv")
    assert tuple(trace[0]) == FIELDS
    assert {row["rank"] for row in trace} == {str(rank) for rank in range(ranks)}
    for rank in range(ranks):
        assert max(int(row["memory_bytes"]) for row in trace if row["rank"] == str(rank)) > 10e6
    environment = json.loads((folder / "environment.json").read_text())
    assert {"versions", "git_commit", "processors", "gpus", "load", "probes"} <= environment.keys()
    assert all(len(environment["probes"][when]) == ranks for when in ("before", "after"))
    config = yaml.safe_load((folder / "config.yaml").read_text())
    workers = 1 if strategy in ("single", "tf_single") else 2
    assert (config["strategy"]["name"], config["workers"], config["out"]) == (strategy, workers, "run")


def test_workers_that_take_turns_have_rows_of_their_own(runs: Callable[[str], Path]) -> None:
    folder = runs("tf_parameter_server")
    assert {path.name for path in folder.iterdir()} == FILES | {"placement.json", "timeline.json"}
    processes = {"rank-0", "rank-1", "server-0", "coordinator"}
    assert {path.stem for path in (folder / "logs").iterdir()} == processes
    steps = table(folder / "steps.csv")
    # Between them they took all shares of all batches.
    assert len(steps) == 2 * STEPS
    for rank in "01":
        mine = [row for row in steps if row["rank"] == rank]
        assert [int(row["step"]) for row in mine] == list(range(1, len(mine) + 1))
        assert {row["samples"] for row in mine} == {"64"}
        assert all(float(row["staleness"]) >= 0 for row in mine)
    found = metrics(folder)
    (epoch,) = table(folder / "epochs.csv")
    assert float(epoch["accuracy"]) == found["accuracy"]
    trace = table(folder / "trace.csv")
    assert {row["rank"] for row in trace} == {"0", "1"}
    assert 0 < found["helper_cpu_seconds"] < 2 * found["total_seconds"]


def test_ddp_computes_what_one_device_does(runs: Callable[[str], Path]) -> None:
    single, ddp = losses(runs("single"))[:10], losses(runs("ddp"))[:10]
    assert len(single) == 10
    gaps = [abs(a - b) / max(1, abs(a)) for a, b in zip(single, ddp, strict=True)]
    assert max(gaps) <= PARITY
    # Losses that don't move would agree as well.
    assert len(set(single)) == 10


def test_tensorflow_trains_compiled_in_mixed_precision(commands: Any, runs: Callable[[str], Path]) -> None:
    words = ("strategy=tf_custom", "precision=bf16", "strategy.xla=true", "out=run", "tracking.backend=none")
    done = commands.run(*words, *SHORT)
    assert done.returncode == 0, done.stderr
    found = metrics(commands.folder / "run")
    assert found["status"] == "ok"
    assert found["accuracy"] >= 0.3
    exact, rounded = losses(runs("tf_custom")), losses(commands.folder / "run")
    # Eight bits of a number: close at the beginning, and not the same.
    assert rounded[0] == pytest.approx(exact[0], rel=0.02)
    assert rounded[0] != exact[0]


def test_no_process_imports_what_is_not_its_own(runs: Callable[[str], Path]) -> None:
    for strategy, own, foreign in (
        ("single", "torch", {"tensorflow", "keras"}),
        ("tf_single", "tensorflow", {"torch", "pytorch_lightning"}),
    ):
        rank = imported((runs(strategy) / "logs" / "rank-0.log").read_text())
        assert own in rank
        assert not rank & (foreign | {"hydra", "omegaconf"})
        parent = imported((runs(strategy).parent / "stderr").read_text())
        assert "src.train" in parent or "hydra" in parent
        assert not parent & {"torch", "tensorflow", "keras", "pytorch_lightning"}


def test_the_parent_stays_free_of_frameworks() -> None:
    heavy = {"torch", "tensorflow", "mlflow", "numpy"}
    code = f"import sys, src.train; print(sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_an_epoch_is_tracked_on_its_own_axis(runs: Callable[[str], Path]) -> None:
    from mlflow import MlflowClient

    folder = runs("single")
    client = MlflowClient(f"sqlite:///{folder.parent}/mlflow.db")
    found = metrics(folder)
    run = client.get_run(found["mlflow_run_id"])
    assert (run.info.status, run.info.run_name) == ("FINISHED", "run")
    assert "mlflow.parentRunId" not in run.data.tags
    accuracy = client.get_metric_history(run.info.run_id, "epoch/accuracy")
    assert [(point.step, point.value) for point in accuracy] == [(1, found["accuracy"])]
    steps = sorted(client.get_metric_history(run.info.run_id, "step/loss"), key=lambda point: point.step)
    assert [point.step for point in steps] == list(range(1, STEPS + 1))
    assert [point.value for point in steps] == pytest.approx(losses(folder))
    assert run.data.params["optimizer.lr"] == "0.05"


def test_a_sweep_as_typed_is_two_tracked_runs_under_one(commands, fashion_mnist: None) -> None:
    typed = "strategy=ddp workers=2 model=resnet18 dataset=fashion_mnist max_minutes=2 -m batch=64,128"
    shared = () if _two_cores() else ("hardware.share_devices=true",)
    done = commands.run(*typed.split(), *shared, "dataset.test_limit=1000", SCALEGUIDE_MAX_MINUTES="0.05")
    assert done.returncode == 0, done.stderr
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{commands.folder}/mlflow.db")
    experiment = client.get_experiment_by_name("scaleguide")
    found = client.search_runs([experiment.experiment_id])
    parents = [run for run in found if run.data.tags.get("sweep") == "parent"]
    children = [run for run in found if run not in parents]
    # One a training and one for all of them; none a rank.
    assert (len(parents), len(children)) == (1, 2)
    assert {run.info.status for run in found} == {"FINISHED"}
    places = {run.data.tags["out"]: run for run in children}
    assert sorted(int(run.data.params["batch"]) for run in children) == [64, 128]
    for out, run in places.items():
        folder = commands.folder / out
        assert run.data.tags["mlflow.parentRunId"] == parents[0].info.run_id
        tags = {key: run.data.tags[key] for key in ("strategy", "model", "dataset", "hardware", "framework")}
        assert list(tags.values()) == ["ddp", "resnet18", "fashion_mnist", "local", "torch"]
        assert metrics(folder)["mlflow_run_id"] == run.info.run_id
        assert metrics(folder)["status"] == "time_limit"
        artifacts = {item.path for item in client.list_artifacts(run.info.run_id)}
        assert artifacts == FILES
        logs = {item.path for item in client.list_artifacts(run.info.run_id, "logs")}
        assert logs == {"logs/rank-0.log", "logs/rank-1.log"}
        points = client.get_metric_history(run.info.run_id, "step/loss")
        rows = [row for row in table(folder / "steps.csv") if row["rank"] == "0"]
        assert sorted(point.step for point in points) == [int(row["step"]) for row in rows]
        evaluated = client.get_metric_history(run.info.run_id, "evaluation/accuracy")
        assert [point.step for point in evaluated] == [int(rows[-1]["step"])]
        assert {"evaluation/loss", "accuracy", "train_seconds"} <= run.data.metrics.keys()
        system = {key for key in run.data.metrics if key.startswith("system/")}
        assert {key.split("_")[1] for key in system} == {"0", "1"}
        assert run.data.metrics["train_seconds"] == pytest.approx(metrics(folder)["train_seconds"])
    assert commands.left() == []


def _two_cores() -> bool:
    from src.launch.devices import usable_cores

    return len(usable_cores()) >= 2


def test_a_run_takes_the_place_of_its_own_kind_alone(commands, mnist: None) -> None:
    out = commands.folder / "run"
    assert commands.run(*TINY).returncode == 0
    first = metrics(out)["total_seconds"]
    # A complete run of the same configuration is replaced.
    assert commands.run(*TINY).returncode == 0
    assert metrics(out)["total_seconds"] != first
    assert [path.name for path in commands.folder.iterdir()] == ["run"]
    # Another configuration is refused unless asked for.
    refused = commands.run(*TINY, "seed=1")
    assert refused.returncode == 2
    assert "another configuration (seed: 0 there, 1 here)" in refused.stderr
    assert "overwrite=true" in refused.stderr
    assert metrics(out)["seed"] == 0
    # What a run left half-written is in nobody's way, and overwrite=true replaces another configuration.
    for name in ("metrics.json", "epochs.csv"):
        (out / name).unlink()
    assert commands.run(*TINY, "seed=1").returncode == 2
    assert commands.run(*TINY, "seed=1", "overwrite=true").returncode == 0
    assert metrics(out)["seed"] == 1
    (out / "metrics.json").unlink()
    assert commands.run(*TINY, "seed=1").returncode == 0
    assert {path.name for path in out.iterdir()} == FILES


def test_foreign_files_are_never_replaced(commands) -> None:
    out = commands.folder / "run"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    # As many projects have one; this is no run's.
    for config in (None, "a: 1\n", "- a\n", "\tno yaml"):
        if config is not None:
            (out / "config.yaml").write_text(config)
        for words in (TINY, (*TINY, "overwrite=true")):
            done = commands.run(*words)
            assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
            assert "out=run: holds files that are not a run's" in done.stderr
    assert (out / "thesis.tex").read_text() == "years of work"


BROKEN = ("model=custom", "model.path=tests.plugin.model.tiny.broken_on_rank_0")


def test_a_crash_names_the_rank_its_log_and_its_last_words(commands, mnist: None) -> None:
    words = ("strategy=ddp", "workers=2", *BROKEN, *TINY[1:], *SHORT[3:])
    done = commands.run(*words)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[0] == "error: rank 0 failed with exit status 1; its log is run/logs/rank-0.log"
    assert lines[-1] == "  | RuntimeError: the glue has not dried"
    assert len(lines) <= 9
    assert metrics(commands.folder / "run")["status"] == "failed"
    assert commands.left() == []


def test_a_crash_in_a_study_is_recorded_and_the_study_goes_on(commands, mnist: None) -> None:
    done = commands.run(*BROKEN, *TINY[1:], "tracking.study=small")
    assert done.returncode == 0
    assert "error: rank 0 failed" in done.stderr
    assert metrics(commands.folder / "run")["status"] == "failed"
    # It may be run again.
    again = commands.run(*BROKEN, *TINY[1:], "tracking.study=small")
    assert again.returncode == 0, again.stderr


def test_a_crash_in_a_sweep_leaves_the_other_cells_alone(commands, mnist: None) -> None:
    path = "tests.plugin.model.tiny"
    done = commands.run(
        *("-m", "model=custom", f"model.path={path}.broken_on_rank_0,{path}.Tiny"),
        *TINY[1:3],
        "out=run-${model.path}",
    )
    assert done.returncode == 1
    assert metrics(commands.folder / f"run-{path}.broken_on_rank_0")["status"] == "failed"
    assert metrics(commands.folder / f"run-{path}.Tiny")["status"] == "ok"


def test_a_run_that_its_minutes_stop_is_evaluated_and_no_failure(commands, mnist: None) -> None:
    done = commands.run(
        *("model=mlp", "tracking.backend=none", "epochs=50", "checkpoint_every=1000000"),
        SCALEGUIDE_MAX_MINUTES="0.01",
    )
    assert done.returncode == 0, done.stderr
    (folder,) = (commands.folder / "runs").iterdir()
    assert folder.name == "single-mlp-mnist-w1-b128-s0-epochs=50"
    found = metrics(folder)
    assert found["status"] == "time_limit"
    assert 0 < found["epochs"] < 50
    # It notices within half a second or so that its 0.6 s are over; a busy machine gives it fewer.
    assert 0.6 <= found["train_seconds"] < 15
    assert 0 < found["accuracy"] < 1
    assert "time_limit" in done.stdout
    kept = torch.load(folder / "checkpoint.pt", weights_only=True)
    assert kept["epoch"] + kept["step"] / steps_per_epoch(60000, 128) == pytest.approx(
        found["epochs"], abs=1e-4
    )


@pytest.mark.parametrize("strategy", ["single", "tf_single", "tf_parameter_server"])
def test_a_loss_that_is_no_number_is_a_result(commands, mnist: None, strategy: str) -> None:
    words = ("optimizer.lr=1e30", "epochs=20", "hardware.device=cpu", "hardware.share_devices=true")
    done = commands.run(*TINY, f"strategy={strategy}", *words)
    assert done.returncode == 0, done.stderr
    found = metrics(commands.folder / "run")
    assert found["status"] == "diverged"
    assert found["loss"] is None
    assert found["train_seconds"] > 0


def test_too_little_memory_is_a_result(commands, mnist: None) -> None:
    done = commands.run("model=custom", "model.path=tests.plugin.model.tiny.hungry", *TINY[1:])
    assert done.returncode == 0, done.stderr
    assert metrics(commands.folder / "run")["status"] == "out_of_memory"


def test_help_names_the_choices_and_starts_nothing(commands) -> None:
    done = commands.run("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "tf_single" in done.stdout and "fashion_mnist" in done.stdout and "momentum: 0.9" in done.stdout
    shown = commands.run("--cfg", "job", "model=mlp")
    assert shown.returncode == 0
    assert yaml.safe_load(shown.stdout)["model"]["hidden"] == 128
    assert list(commands.folder.iterdir()) == []
