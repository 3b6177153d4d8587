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
from src.measure.metrics import KEYS
from src.run.tables import EPOCH_FIELDS, STEP_FIELDS, TRACE_FIELDS
from tests.support import BATCH, SHORT, STEPS

ROOT = Path(__file__).parents[1]
PARITY = 1e-4
TINY = ("model=mlp", "dataset.limit=1280", "tracking.backend=none", "out=run")
FILES = {
    "config.yaml",
    "metrics.json",
    "steps.csv",
    "workers.csv",
    "epochs.csv",
    "trace.csv",
    "interfaces.csv",
    "environment.json",
    "logs",
}
# What torch ranks draw.
PICTURES = {"predictions.png"}
# What a synchronous CPU run must fill; a machine may lack counters of energy and traffic.
FILLED = {
    "status", "framework", "strategy", "model", "dataset", "data_source", "hardware", "workers", "batch",
    "scaling", "microbatches", "seed", "epochs", "parameters", "train_seconds", "total_seconds",
    "startup_seconds", "seconds_per_epoch", "samples_per_second", "validation_samples_per_second",
    "step_seconds_median", "step_seconds_p25", "step_seconds_p75", "seconds_to_target", "steps_to_target",
    "loss", "accuracy", "train_accuracy", "utilization_mean", "utilization_max", "busy_fraction",
    "memory_mean_bytes", "memory_peak_bytes", "payload_bytes", "input_wait_fraction", "restarts",
    "cpu_wait_fraction", "steal_fraction",
    "shared_device",
}  # fmt: skip
COSTED = {"saved_tensors_bytes", "flops_per_sample", "model_flops_utilization"}
# What TensorFlow's devices wait for each other, and Keras's `fit` for its input, can't be told.
UNTOLD = {"busy_fraction"}
MUST_FILL = {
    "single": FILLED | COSTED | {"mlflow_run_id", "rounding_gap"},
    "ddp": FILLED | COSTED,
    "mpi": FILLED | COSTED,
    "local_sgd": FILLED | COSTED,
    "parameter_server": FILLED - {"input_wait_fraction"}
    | COSTED
    | {"staleness_mean", "clock_gap_max", "helper_cpu_seconds"},
    "tf_single": FILLED | {"rounding_gap"},
    "tf_mirrored": FILLED - UNTOLD - {"input_wait_fraction"},
    "tf_custom": FILLED - UNTOLD,
    "tf_multiworker": FILLED - UNTOLD,
    "tf_model_split": FILLED - UNTOLD,
    "tf_mpi": FILLED,
    "tf_parameter_server": FILLED - {"input_wait_fraction"} | {"staleness_mean", "helper_cpu_seconds"},
}
# Processes that train.
RANKS = {
    "ddp": 2,
    "mpi": 2,
    "local_sgd": 2,
    "parameter_server": 2,
    "tf_multiworker": 2,
    "tf_mpi": 2,
}
# There is no pipeline; what is stale, helper processes and a gap of its own some have alone.
MUST_BE_NULL = {"bubble_fraction", "staleness_mean", "clock_gap_max", "helper_cpu_seconds", "rounding_gap"}


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


@pytest.mark.parametrize("strategy", MUST_FILL)
def test_every_key_is_there_and_filled_where_it_must_be(runs: Callable[[str], Path], strategy: str) -> None:
    metrics_of_run = metrics(runs(strategy))
    assert tuple(metrics_of_run) == KEYS
    null = {key for key, value in metrics_of_run.items() if value is None}
    assert sorted(null & MUST_FILL[strategy]) == []
    assert null >= MUST_BE_NULL - MUST_FILL[strategy]
    assert (metrics_of_run["status"], metrics_of_run["strategy"], metrics_of_run["epochs"]) == (
        "ok",
        strategy,
        1,
    )
    assert (metrics_of_run["dataset"], metrics_of_run["data_source"], metrics_of_run["batch"]) == (
        "mnist",
        "original",
        BATCH,
    )
    assert metrics_of_run["shared_device"] is True
    # Two convolutions, two dense layers: 20*26 + 50*501 + 500*801 + 10*501 weights and biases.
    assert metrics_of_run["parameters"] == 520 + 25_050 + 400_500 + 5_010
    assert 0.3 <= metrics_of_run["accuracy"] <= 1
    # The one evaluation found the target reached, at the end; files round to nanoseconds.
    assert metrics_of_run["seconds_to_target"] == pytest.approx(metrics_of_run["train_seconds"], rel=0.05)
    assert metrics_of_run["steps_to_target"] == STEPS
    assert (
        metrics_of_run["startup_seconds"] + metrics_of_run["train_seconds"] < metrics_of_run["total_seconds"]
    )
    assert (
        0
        < metrics_of_run["step_seconds_p25"]
        <= metrics_of_run["step_seconds_median"]
        <= metrics_of_run["step_seconds_p75"]
    )
    assert 0 < metrics_of_run["utilization_mean"] <= metrics_of_run["utilization_max"]
    assert null >= FILLED - MUST_FILL[strategy]
    for key in {"input_wait_fraction", "busy_fraction"} - null:
        assert 0 <= metrics_of_run[key] <= 1
    # A gradient of 4 bytes a parameter, each worker and step; one device sends nothing. A model that is cut
    # before its fifth of seven operations sends 50 maps of 4x4 a sample, and gets their gradients back. With
    # the gradients an MPI rank hands over its loss, its correct answers and whether it is late.
    gradients = 2 * STEPS * 4 * metrics_of_run["parameters"]
    sent = {"single": 0, "tf_single": 0, "tf_model_split": 2 * STEPS * BATCH * 4 * 50 * 4 * 4}
    # Parameters are fetched, and gradients pushed, by half a batch each.
    sent |= dict.fromkeys(("tf_parameter_server", "parameter_server"), 2 * gradients)
    # Every eighth step; what an evaluation needs isn't counted.
    sent["local_sgd"] = gradients * (STEPS // 8) / STEPS
    sent["tf_mpi"] = gradients + 2 * STEPS * 4 * 3
    assert metrics_of_run["payload_bytes"] == sent.get(strategy, gradients)


@pytest.mark.parametrize("strategy", ["ddp", "parameter_server", "tf_single"])
def test_the_peak_of_a_workers_device_is_told_with_its_source(
    runs: Callable[[str], Path], strategy: str
) -> None:
    folder = runs(strategy)
    environment, figures = json.loads((folder / "environment.json").read_text()), metrics(folder)
    model, cores = (environment["processors"][key] for key in ("model", "cores_per_device"))
    assert environment["peak_device"] == f"{model} ({cores} core{'s' if cores > 1 else ''})"
    assert (environment["peak_precision"], environment["peak_official_flops"]) == ("fp32", None)
    assert environment["peak_flops"] == environment["peak_measured_flops"] > 1e9
    assert environment["peak_source"].startswith("measured: the fastest fp32 matrix product of t")
    if strategy in ("ddp", "parameter_server"):
        flops = figures["flops_per_sample"] * figures["samples_per_second"]
        peaks = figures["workers"] * environment["peak_flops"]
        assert figures["model_flops_utilization"] == pytest.approx(flops / peaks)


# Each rank has losses of its own, and asynchronous ones other files as well.
UNEQUAL = {"tf_parameter_server", "parameter_server", "local_sgd"}


@pytest.mark.parametrize("strategy", ["mpi", "tf_mpi"])
def test_ranks_of_mpi_tell_the_mean_of_their_times(runs: Callable[[str], Path], strategy: str) -> None:
    folder = runs(strategy)
    mean_seconds = json.loads((folder / "environment.json").read_text())["mean_rank_train_seconds"]
    assert mean_seconds == pytest.approx(metrics(folder)["train_seconds"], rel=0.2)


@pytest.mark.parametrize("strategy", sorted(MUST_FILL.keys() - UNEQUAL))
def test_every_file_of_the_contract_is_there(runs: Callable[[str], Path], strategy: str) -> None:
    folder = runs(strategy)
    ranks = RANKS.get(strategy, 1)
    exchanges = {"exchange.csv"} if strategy in ("ddp", "mpi", "tf_mpi") else set()
    further = {"tf_model_split": {"partition.json"}}.get(strategy, set()) | exchanges
    files = FILES | further | (set() if strategy.startswith("tf_") else PICTURES)
    assert {path.name for path in folder.iterdir()} == files
    assert {path.name for path in (folder / "logs").iterdir()} == {f"rank-{n}.log" for n in range(ranks)}
    steps = table(folder / "steps.csv")
    assert tuple(steps[0]) == ("rank", *STEP_FIELDS)
    for rank in range(ranks):
        rows_of_rank = [row for row in steps if row["rank"] == str(rank)]
        # Warm-up steps are rows too.
        assert [int(row["step"]) for row in rows_of_rank] == list(range(1, STEPS + 1))
        assert {(row["epoch"], row["samples"], row["staleness"]) for row in rows_of_rank} == {
            ("1", str(BATCH // ranks), "")
        }
        assert losses(folder, rank) == losses(folder, 0)
    metrics_of_run = metrics(folder)
    taken = sum(float(row["seconds"]) for row in steps if row["rank"] == "0")
    assert metrics_of_run["train_seconds"] == pytest.approx(taken, rel=0.05)
    epochs = table(folder / "epochs.csv")
    assert tuple(epochs[0]) == EPOCH_FIELDS
    assert [float(row["epoch"]) for row in epochs] == [1]
    assert float(epochs[0]["accuracy"]) == metrics_of_run["accuracy"]
    # The mean over the epoch's steps, in which every sample stood once.
    assert float(epochs[0]["train_loss"]) == pytest.approx(sum(losses(folder)) / STEPS, rel=1e-4)
    trace = table(folder / "trace.csv")
    assert tuple(trace[0]) == TRACE_FIELDS
    assert {row["rank"] for row in trace} == {str(rank) for rank in range(ranks)}
    for rank in range(ranks):
        assert max(int(row["memory_bytes"]) for row in trace if row["rank"] == str(rank)) > 10e6
    environment = json.loads((folder / "environment.json").read_text())
    assert {
        "versions",
        "git_commit",
        "processors",
        "gpus",
        "load",
        "probes",
        "probe_changed",
        "contention",
        "devices",
        "attempts",
        "start_method",
    } <= environment.keys()
    parts = ["parent", "imports", "setup", "first_step", "further_steps", "evaluation", "merge", "tracking"]
    if strategy in SYNCHRONOUS:
        # The first ten steps once more, which no other part of the record knows of.
        parts.insert(-2, "rounding")
        assert 0 <= metrics_of_run["rounding_gap"] <= PARITY
        assert len(environment["rounding_losses"]) == 10
    assert list(environment["seconds"]) == parts
    assert all(seconds >= 0 for seconds in environment["seconds"].values())
    # The rest is how processes end, which takes longer on a busy machine.
    parts_of_it = sum(environment["seconds"].values())
    assert parts_of_it == pytest.approx(metrics_of_run["total_seconds"], rel=0.2, abs=3)
    assert all(len(environment["probes"][when]) == ranks for when in ("before", "after"))
    config = yaml.safe_load((folder / "config.yaml").read_text())
    workers = 1 if strategy in ("single", "tf_single") else 2
    assert (config["strategy"]["name"], config["workers"], config["out"]) == (strategy, workers, "run")


def test_asynchronous_workers_have_rows_of_their_own(runs: Callable[[str], Path]) -> None:
    folder = runs("tf_parameter_server")
    assert {path.name for path in folder.iterdir()} == FILES | {"placement.json", "timeline.json"}
    processes = {"rank-0", "rank-1", "server-0", "coordinator"}
    assert {path.stem for path in (folder / "logs").iterdir()} == processes
    steps = table(folder / "steps.csv")
    # Between them they took all shares of all batches.
    assert len(steps) == 2 * STEPS
    for rank in "01":
        rows_of_rank = [row for row in steps if row["rank"] == rank]
        assert [int(row["step"]) for row in rows_of_rank] == list(range(1, len(rows_of_rank) + 1))
        assert {row["samples"] for row in rows_of_rank} == {str(BATCH // 2)}
        assert all(float(row["staleness"]) >= 0 for row in rows_of_rank)
    metrics_of_run = metrics(folder)
    (epoch,) = table(folder / "epochs.csv")
    assert float(epoch["accuracy"]) == metrics_of_run["accuracy"]
    trace = table(folder / "trace.csv")
    assert {row["rank"] for row in trace} == {"0", "1"}
    assert 0 < metrics_of_run["helper_cpu_seconds"] < 2 * metrics_of_run["total_seconds"]


SYNCHRONOUS = {
    "single": ("ddp", "mpi", "parameter_server", "model_split", "pipeline"),
    "tf_single": ("tf_mirrored", "tf_custom", "tf_multiworker", "tf_mpi", "tf_model_split"),
}


@pytest.mark.parametrize(
    ("reference", "strategy"), [(single, each) for single, every in SYNCHRONOUS.items() for each in every]
)
def test_a_synchronous_strategy_computes_what_one_device_does(
    runs: Callable[[str], Path], reference: str, strategy: str
) -> None:
    single, several = losses(runs(reference))[:10], losses(runs(strategy))[:10]
    assert len(single) == 10
    gaps = [abs(a - b) / max(1, abs(a)) for a, b in zip(single, several, strict=True)]
    assert max(gaps) <= PARITY
    # Losses that don't move would agree as well.
    assert len(set(single)) == 10


@pytest.mark.slow
def test_tensorflow_trains_compiled_in_mixed_precision(commands: Any, runs: Callable[[str], Path]) -> None:
    words = ("strategy=tf_custom", "precision=bf16", "strategy.xla=true", "out=run", "tracking.backend=none")
    completed = commands.run(*words, *SHORT)
    assert completed.returncode == 0, completed.stderr
    metrics_of_run = metrics(commands.folder / "run")
    assert metrics_of_run["status"] == "ok"
    assert metrics_of_run["accuracy"] >= 0.3
    exact, rounded = losses(runs("tf_custom")), losses(commands.folder / "run")
    # Eight bits of a number: close at the beginning, and not the same.
    assert rounded[0] == pytest.approx(exact[0], rel=0.02)
    assert rounded[0] != exact[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "own", "foreign"),
    [
        ("single", "torch", {"tensorflow", "keras"}),
        ("tf_single", "tensorflow", {"torch", "pytorch_lightning"}),
    ],
)
def test_no_process_imports_what_is_not_its_own(
    commands, mnist: None, strategy: str, own: str, foreign: set[str]
) -> None:
    tracked = [word for word in TINY if not word.startswith("tracking")]
    completed = commands.run(*tracked, f"strategy={strategy}", PYTHONPROFILEIMPORTTIME="1")
    assert completed.returncode == 0
    rank = imported((commands.folder / "run" / "logs" / "rank-0.log").read_text())
    assert own in rank
    assert not rank & (foreign | {"hydra", "omegaconf", "mlflow"})
    parent = imported(completed.stderr)
    assert {"hydra", "mlflow"} <= parent
    assert not parent & {"torch", "tensorflow", "keras", "pytorch_lightning"}


def test_the_parent_stays_free_of_frameworks() -> None:
    heavy = {"torch", "tensorflow", "mlflow", "numpy"}
    code = f"import sys, src.train; print(sorted({heavy} & sys.modules.keys()))"
    completed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (completed.stdout, completed.stderr) == ("[]\n", "")


def test_each_curve_is_tracked_once_over_steps(runs: Callable[[str], Path]) -> None:
    from mlflow import MlflowClient

    folder = runs("single")
    client = MlflowClient(f"sqlite:///{folder.parent}/mlflow.db")
    metrics_of_run = metrics(folder)
    run = client.get_run(metrics_of_run["mlflow_run_id"])
    assert (run.info.status, run.info.run_name) == ("FINISHED", "run")
    assert "mlflow.parentRunId" not in run.data.tags
    accuracy = client.get_metric_history(run.info.run_id, "evaluation/accuracy")
    assert [(point.step, point.value) for point in accuracy] == [(STEPS, metrics_of_run["accuracy"])]
    steps = sorted(client.get_metric_history(run.info.run_id, "train/loss"), key=lambda point: point.step)
    assert [point.step for point in steps] == list(range(1, STEPS + 1))
    assert [point.value for point in steps] == pytest.approx(losses(folder))
    assert run.data.params["optimizer.lr"] == "0.01"


@pytest.mark.slow
def test_a_sweep_as_typed_is_two_tracked_runs_under_one(commands, fashion_mnist: None) -> None:
    typed = "strategy=ddp workers=2 model=resnet18 dataset=fashion_mnist max_minutes=2 -m batch=64,128"
    shared = () if _two_cores() else ("hardware.share_devices=true",)
    completed = commands.run(
        *typed.split(), *shared, "dataset.test_limit=1000", SCALEGUIDE_MAX_MINUTES="0.05"
    )
    assert completed.returncode == 0, completed.stderr
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{commands.folder}/mlflow.db")
    experiment = client.get_experiment_by_name("scaleguide")
    tracked = client.search_runs([experiment.experiment_id])
    parents = [run for run in tracked if run.data.tags.get("sweep") == "parent"]
    children = [run for run in tracked if run not in parents]
    # One a training and one for all of them; none a rank.
    assert (len(parents), len(children)) == (1, 2)
    assert parents[0].info.run_name == "batch=64,128"
    assert {run.info.status for run in tracked} == {"FINISHED"}
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
        assert artifacts == FILES | PICTURES | {"exchange.csv"}
        logs = {item.path for item in client.list_artifacts(run.info.run_id, "logs")}
        assert logs == {"logs/rank-0.log", "logs/rank-1.log"}
        points = client.get_metric_history(run.info.run_id, "train/loss")
        rows = [row for row in table(folder / "steps.csv") if row["rank"] == "0"]
        assert sorted(point.step for point in points) == [int(row["step"]) for row in rows]
        evaluated = client.get_metric_history(run.info.run_id, "evaluation/accuracy")
        assert [point.step for point in evaluated] == [int(rows[-1]["step"])]
        assert {"evaluation/loss", "total_seconds", "train_seconds"} <= run.data.metrics.keys()
        system = {key for key in run.data.metrics if key.startswith("system/")}
        assert {key.split("_")[1] for key in system if "/rank_" in key} == {"0", "1"}
        assert "system/cpu_utilization_percentage" in system
        assert run.data.metrics["train_seconds"] == pytest.approx(metrics(folder)["train_seconds"])
    assert commands.left() == []


def _two_cores() -> bool:
    from src.machine.devices import usable_cores

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
    assert {path.name for path in out.iterdir()} == FILES | PICTURES


def test_foreign_files_are_never_replaced(commands) -> None:
    out = commands.folder / "run"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    # As many projects have one; this is no run's.
    for config in (None, "a: 1\n", "- a\n", "\tno yaml"):
        if config is not None:
            (out / "config.yaml").write_text(config)
        for words in (TINY, (*TINY, "overwrite=true")):
            completed = commands.run(*words)
            assert (completed.returncode, len(completed.stderr.splitlines())) == (2, 1)
            assert "out=run: holds files that are not a run's" in completed.stderr
    assert (out / "thesis.tex").read_text() == "years of work"


BROKEN = ("model=custom", "model.path=tests.plugin.model.tiny.broken_on_rank_0")


def test_a_crash_names_the_rank_its_log_and_its_last_words(commands, mnist: None) -> None:
    words = (
        "strategy=ddp",
        "workers=2",
        *BROKEN,
        *TINY[1:],
        "hardware.device=cpu",
        "hardware.share_devices=true",
    )
    completed = commands.run(*words)
    assert completed.returncode == 1
    lines = completed.stderr.splitlines()
    assert lines[0] == "error: rank 0 failed with exit status 1; its log is run/logs/rank-0.log"
    assert lines[-1] == "  | RuntimeError: the glue has not dried"
    assert len(lines) <= 9
    assert metrics(commands.folder / "run")["status"] == "failed"
    assert commands.left() == []


def test_a_crash_in_a_study_is_recorded_and_the_study_goes_on(commands, mnist: None) -> None:
    completed = commands.run(*BROKEN, *TINY[1:], "tracking.study=small")
    assert completed.returncode == 0
    assert "error: rank 0 failed" in completed.stderr
    assert metrics(commands.folder / "run")["status"] == "failed"
    # It may be run again.
    again = commands.run(*BROKEN, *TINY[1:], "tracking.study=small")
    assert again.returncode == 0, again.stderr


def test_a_crash_in_a_sweep_leaves_the_other_cells_alone(commands, mnist: None) -> None:
    path = "tests.plugin.model.tiny"
    completed = commands.run(
        "-m",
        "model=custom",
        f"model.path={path}.broken_on_rank_0,{path}.Tiny",
        *TINY[1:3],
        "out=run-${model.path}",
    )
    assert completed.returncode == 1
    assert metrics(commands.folder / f"run-{path}.broken_on_rank_0")["status"] == "failed"
    assert metrics(commands.folder / f"run-{path}.Tiny")["status"] == "ok"


def test_a_run_that_its_minutes_stop_is_evaluated_and_no_failure(commands, mnist: None) -> None:
    completed = commands.run(
        "model=mlp",
        "tracking.backend=none",
        "epochs=50",
        "checkpoint_every=1000000",
        SCALEGUIDE_MAX_MINUTES="0.01",
    )
    assert completed.returncode == 0, completed.stderr
    (folder,) = (commands.folder / "runs").iterdir()
    assert folder.name == "single-mlp-mnist-w1-b128-s0-epochs=50"
    metrics_of_run = metrics(folder)
    assert metrics_of_run["status"] == "time_limit"
    assert 0 < metrics_of_run["epochs"] < 50
    # It notices within half a second or so that its 0.6 s are over; a busy machine gives it fewer.
    assert 0.6 <= metrics_of_run["train_seconds"] < 15
    assert 0 < metrics_of_run["accuracy"] < 1
    assert "time_limit" in completed.stdout
    checkpoint = torch.load(folder / "checkpoint.pt", weights_only=True)
    assert checkpoint["epoch"] + checkpoint["step"] / steps_per_epoch(60000, 128) == pytest.approx(
        metrics_of_run["epochs"], abs=1e-4
    )


@pytest.mark.parametrize("strategy", ["single", "tf_single", "tf_parameter_server"])
def test_a_loss_that_is_no_number_is_a_result(commands, mnist: None, strategy: str) -> None:
    words = ("optimizer.lr=1e30", "epochs=20", "hardware.device=cpu", "hardware.share_devices=true")
    completed = commands.run(*TINY, f"strategy={strategy}", *words)
    assert completed.returncode == 0, completed.stderr
    metrics_of_run = metrics(commands.folder / "run")
    assert metrics_of_run["status"] == "diverged"
    assert metrics_of_run["loss"] is None
    assert metrics_of_run["train_seconds"] > 0


def test_too_little_memory_is_a_result(commands, mnist: None) -> None:
    completed = commands.run("model=custom", "model.path=tests.plugin.model.tiny.hungry", *TINY[1:])
    assert completed.returncode == 0, completed.stderr
    assert metrics(commands.folder / "run")["status"] == "out_of_memory"


def test_help_names_the_choices_and_starts_nothing(commands) -> None:
    completed = commands.run("--help")
    assert (completed.returncode, completed.stderr) == (0, "")
    assert (
        "tf_single" in completed.stdout
        and "fashion_mnist" in completed.stdout
        and "momentum: 0.9" in completed.stdout
    )
    shown = commands.run("--cfg", "job", "model=mlp")
    assert shown.returncode == 0
    assert yaml.safe_load(shown.stdout)["model"]["hidden"] == 128
    assert list(commands.folder.iterdir()) == []
