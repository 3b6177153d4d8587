"""A tracking server is killed while a run trains, and comes back: nothing is lost, and nothing waits."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from tests.support import ROOT, instances
from tests.tracking.recorded import history

SECONDS = 120
# Enough for the server to be away and back meanwhile; the time is that of training alone.
MINUTES = 0.4
WORDS = (
    "model=cnn", "epochs=1000", "evaluate_every=100", "dataset.test_limit=1000",
    "hardware.device=cpu", "hardware.sample_seconds=0.5",
)  # fmt: skip


class Server:
    """A real MLflow server on loopback, with a store of its own."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir()

    def start(self) -> None:
        """Start it, unless it was; `answers` says when it is there."""
        if self._process is not None:
            return
        words = ["server", "--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        store = [
            "--backend-store-uri",
            f"sqlite:///{self._folder}/mlflow.db",
            "--artifacts-destination",
            str(self._folder / "files"),
        ]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")}
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mlflow", *words, *store],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=environment,
            )

    def answers(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.uri}/health", timeout=2) as answer:
            return bool(answer.status == 200)
        return False

    def kill(self) -> None:
        """Kill it with all its processes."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path / "server")
    yield made
    made.kill()


@pytest.fixture
def where(tmp_path: Path) -> dict[str, str]:
    """Have the program be that of a project of the test's own, which has its notes on runs: a variable."""
    project = tmp_path / "project"
    project.mkdir()
    for name in ("src", "conf"):
        (project / name).symlink_to(ROOT / name)
    return {"PYTHONPATH": str(project)}


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
@pytest.mark.parametrize("back", instances(["while it trains", "after the run"], "while it trains"))
def test_a_server_killed_in_the_middle_and_back_has_every_point_once(
    commands: Any, mnist: None, server: Server, where: dict[str, str], until: Any, back: str
) -> None:
    server.start()
    until(server.answers, SECONDS, "the server")
    where |= {"MLFLOW_TRACKING_URI": server.uri, "SCALEGUIDE_MAX_MINUTES": str(MINUTES)}
    process = commands.start(*WORDS, "out=run", **where)
    client = MlflowClient(server.uri)

    def sent() -> bool:
        experiment = client.get_experiment_by_name("scaleguide")
        runs = client.search_runs([experiment.experiment_id]) if experiment else []
        return bool(runs) and "train/loss" in runs[0].data.metrics

    until(sent, SECONDS, "the first points")
    server.kill()
    assert process.poll() is None, "the server was to be killed in the middle"
    steps = commands.folder / "run" / "ranks" / "0" / "steps.csv"
    known = steps.stat().st_size
    until(lambda: "warning: the MLflow store can't be reached" in commands.output()[1], SECONDS, "a warning")
    if back == "while it trains":
        server.start()
    assert process.wait(SECONDS) == 0, commands.output()
    metrics = json.loads((commands.folder / "run" / "metrics.json").read_text())
    environment = json.loads((commands.folder / "run" / "environment.json").read_text())
    # It trained on meanwhile, and its end waited for nobody.
    assert (commands.folder / "run" / "steps.csv").stat().st_size > known
    assert metrics["status"] == "time_limit"
    assert metrics["train_seconds"] < MINUTES * 60 + 5
    assert environment["seconds"]["tracking"] < 30
    assert commands.output()[1].count("warning:") == 1
    server.start()
    until(server.answers, SECONDS, "the server's return")
    experiment = client.get_experiment_by_name("scaleguide")
    # On a busy machine a server that has just started may be too slow for the first.
    for number in range(3):
        again = commands.run("model=mlp", "dataset.limit=640", f"out=next-{number}", **where)
        assert again.returncode == 0, again.stderr
        runs = client.search_runs([experiment.experiment_id], "attributes.run_name = 'run'")
        (run,) = runs
        if run.info.status == "FINISHED":
            break
    assert run.info.status == "FINISHED", again.stdout + again.stderr
    recorded = rows(commands.folder / "run" / "steps.csv")
    expected = [(int(row["step"]), float(row["loss"])) for row in recorded]
    assert history(client, run.info.run_id, "train/loss") == expected
    evaluations = rows(commands.folder / "run" / "epochs.csv")
    expected = [(int(row["step"]), float(row["accuracy"])) for row in evaluations]
    assert history(client, run.info.run_id, "evaluation/accuracy") == expected
    trace = rows(commands.folder / "run" / "trace.csv")
    utilization = history(client, run.info.run_id, "system/rank_0_cpu0_utilization_percentage")
    assert [step for step, _ in utilization] == list(range(len(trace)))
    lasted = (run.info.end_time - run.info.start_time) / 1000
    assert lasted == pytest.approx(metrics["total_seconds"], abs=5)
    assert "metrics.json" in {entry.path for entry in client.list_artifacts(run.info.run_id)}


@pytest.mark.slow
def test_a_server_that_accepts_and_never_answers_holds_up_nobody(
    commands: Any, mnist: None, where: dict[str, str], tmp_path: Path
) -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen(64)
        address = f"http://127.0.0.1:{mute.getsockname()[1]}"
        completed = commands.run(
            "model=mlp",
            "dataset.limit=6400",
            "hardware.device=cpu",
            "out=run",
            **where,
            MLFLOW_TRACKING_URI=address,
        )
    assert completed.returncode == 0, completed.stderr
    assert completed.stderr.count("warning:") == 1 and "Traceback" not in completed.stderr
    environment = json.loads((commands.folder / "run" / "environment.json").read_text())
    assert environment["seconds"]["tracking"] < 30
    assert json.loads((commands.folder / "run" / "metrics.json").read_text())["mlflow_run_id"] is None
    # What is to be sent later is remembered.
    assert len(list((tmp_path / "project/runs/.unsent").glob("*.json"))) == 1
