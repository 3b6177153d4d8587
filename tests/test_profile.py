"""`python -m src.profile` as it is typed: exchanges, and a model's steps; and `hardware.probe=true`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from src.machine import devices
from src.profile import __main__ as command
from tests.launch.emulated.test_switch import Switch
from tests.support import instances, typed
from tests.test_networks import SHORT

ROOT = Path(__file__).parents[1]


def profile(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "src.profile", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "usage: python -m src.profile network"),
        (("netwrok",), "usage: python -m src.profile network"),
        (
            ("network", "hardware=vnp"),
            "error: hardware=vnp: no such hardware; there are cluster, datacenter, lan",
        ),
        (("network", "strategy=hogwild"), "error: strategy=hogwild: has no exchanges to measure"),
        (
            ("network", "hardware=lan", "strategy=single", "workers=1"),
            "error: hardware=lan: the processes of strategy",
        ),
        (("network", "hardware.probe_seconds=0"), "error: hardware.probe_seconds=0: must be at least 0.1"),
        (("network", "out=file"), "error: out=file: is no folder"),
        (("model=mlp", "out=file"), "error: out=file: is no folder"),
        (
            ("model=mlp", "strategy=sandblaster_lbfgs"),
            "error: strategy=sandblaster_lbfgs: its steps can't be predicted yet",
        ),
        (("model=mpl",), "error: model=mpl: no such model"),
    ],
)
def test_a_mistake_is_one_line_before_anything_starts(
    words: tuple[str, ...],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    assert typed(command.main, *words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(says)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_mistake_that_is_typed_is_a_line(tmp_path: Path) -> None:
    asked = profile(tmp_path, "model=mpl")
    assert asked.returncode == 2 and asked.stderr.startswith("error: model=mpl: no such model")
    assert asked.stderr.count("\n") == 1 and not [*tmp_path.iterdir()]


OPERATIONS = ("all_reduce", "broadcast", "send_receive")
# The backend of a strategy, and its exchanges.
BACKENDS = {
    "ddp": ("gloo", OPERATIONS),
    "mpi": ("mpi", OPERATIONS),
    "parameter_server": ("messages", ("send_receive",)),
    "tf_multiworker": ("tensorflow auto", ("all_reduce",)),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategies", instances(["ddp,parameter_server", "mpi,tf_multiworker"], "ddp,parameter_server")
)
def test_backends_are_measured_over_links_and_the_bandwidth_is_the_links(
    tmp_path: Path, strategies: str
) -> None:
    Switch().end()
    words = ("hardware=wifi", "hardware.probe_seconds=1", "hardware.share_devices=true", "out=net")
    done = profile(tmp_path, "network", *words, f"strategy={strategies}")
    assert done.returncode == 0, done.stderr
    network = json.loads((tmp_path / "net/network.json").read_text())
    found = {(row["backend"], row["operation"]): row for row in network["exchange"]}
    backends = [BACKENDS[strategy] for strategy in strategies.split(",")]
    assert set(found) == {(backend, operation) for backend, every in backends for operation in every}
    for name, row in found.items():
        # 100 Mbit/s are 12.5 MB/s; other tests keep the cores busy.
        assert 6e6 < row["bytes_per_second"] < 13e6, name
        assert 1e-3 < row["latency_seconds"] < 0.1, name
    ways = {(way["from"], way["to"]) for way in network["links"]}
    assert ("worker-0", "worker-1") in ways
    assert (("worker-1", "server-0") in ways) is ("parameter_server" in strategies)
    assert "send/receive" in done.stdout and "95." in done.stdout


@pytest.mark.slow
def test_a_probe_before_a_run_stands_with_it_and_changes_nothing(commands: Any, mnist: None) -> None:
    Switch().end()
    words = ("strategy=ddp", "hardware=wifi", "hardware.probe=true", "hardware.probe_seconds=0.3")
    ended = commands.run(*words, *SHORT)
    assert ended.returncode == 0, ended.stderr
    folder = commands.folder / "run"
    network = json.loads((folder / "network.json").read_text())
    assert set(network) == {"switch", "hosts", "links", "exchange", "traffic"}
    assert {row["operation"] for row in network["exchange"]} == {"all_reduce", "broadcast", "send_receive"}
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["status"] == "ok"
    # The time for it is nobody's start-up.
    assert metrics["startup_seconds"] < metrics["total_seconds"] - metrics["train_seconds"] - 5
    assert not (folder / "probe").exists()
    refused = commands.run("strategy=single", "hardware.probe=true", "model=mlp", "out=other")
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: hardware.probe=true: no exchange of strategy single")


@pytest.mark.slow
def test_a_probe_that_takes_too_long_says_so_and_the_next_cell_runs(commands: Any, mnist: None) -> None:
    Switch().end()
    words = [word for word in SHORT if not word.startswith("out=")]
    slow = ("hardware=vpn", "hardware.probe=true", "hardware.probe_seconds=60", "hardware.grace_minutes=0.1")
    # A study's cell says in its results why it has none, and the others go on.
    ended = commands.run("-m", "strategy=ddp,mpi", *slow, *words, "tracking.study=networks")
    assert ended.returncode == 0
    complaints = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    says = (
        "error: hardware.grace_minutes=0.1: the exchanges took longer; with a smaller hardware.probe_seconds"
    )
    assert len(complaints) == 2 and all(line.startswith(says) for line in complaints), ended.stderr
    recorded = [json.loads(path.read_text()) for path in commands.folder.glob("runs/*/metrics.json")]
    assert [each["status"] for each in recorded] == ["failed"] * 2
    assert all(f"error: {each['error']}".startswith(says) for each in recorded)
    assert commands.left() == []


# Strategies whose ranks exchange as often and as much in each step.
EXCHANGING = ("ddp", "fsdp", "tensor_parallel")


@pytest.mark.slow
def test_a_rank_rehearses_the_exchanges_of_a_real_one_and_its_step_is_predicted(commands: Any) -> None:
    """A model is profiled, run and predicted; a rehearsed rank hands over what a real one does."""
    model = ("model=gpt", "model.layers=1", "dataset=gcide", "dataset.source=generated", "batch=8")
    here = ("hardware.device=cpu", "hardware.share_devices=true", "dataset.limit=480", "dataset.test_limit=8")
    words = (*model, *here, "workers=2")
    strategies = ",".join([*EXCHANGING, "pipeline"])
    done = profile(commands.folder, *words, f"strategy={strategies}", "out=profile")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(EXCHANGING) + 2
    points = json.loads((commands.folder / "profile/profile.json").read_text())["points"]
    by_name = {point["identity"].get("strategy", {}).get("name", "pipeline"): point for point in points}
    ended = commands.run("-m", f"strategy={','.join(EXCHANGING)}", *words, "tracking.backend=none")
    assert ended.returncode == 0, ended.stderr
    for path in commands.folder.glob("runs/*/ranks/0/record.json"):
        name = path.parts[-4].partition("-")[0]
        real: dict[str, float] = {}
        for _, kind, ranks, _, size in json.loads(path.read_text())["exchanges"]:
            assert ranks == 2
            real[kind] = real.get(kind, 0.0) + size
        rehearsed: dict[str, float] = {}
        for event in by_name[name]["ranks"][0]["events"]:
            if event["kind"] not in ("wait", "update"):
                rehearsed[event["kind"]] = rehearsed.get(event["kind"], 0.0) + event["bytes"]
        assert rehearsed == pytest.approx(real, rel=1e-3), name
    asked = subprocess.run(
        [sys.executable, "-m", "src.predict", "--profile", "profile", *words, f"strategy={strategies}"],
        cwd=commands.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert asked.returncode == 0, asked.stderr
    assert sum(" ms " in line for line in asked.stdout.splitlines()) == len(EXCHANGING) + 1


@pytest.mark.slow
def test_one_device_stands_for_workers_with_servers_and_for_those_of_tensorflow(commands: Any) -> None:
    if len(devices.find("cpu", 1, None)) < 2:
        pytest.skip("processes measure side by side on two devices")
    words = (
        "model=mlp",
        "dataset=synthetic",
        "hardware.device=cpu",
        "hardware.share_devices=true",
        "workers=2",
    )
    words = (*words, "batch=16", "strategy=parameter_server,tf_multiworker")
    done = profile(commands.folder, *words, "out=profile")
    assert done.returncode == 0, done.stderr
    found = json.loads((commands.folder / "profile/profile.json").read_text())
    rehearsed = {point["identity"]["strategy"]["name"]: point for point in found["points"]}
    assert set(rehearsed) == {"single", "tf_single"}
    for point in rehearsed.values():
        assert (point["identity"]["workers"], point["microbatch"], point["beside"]) == (1, 8, 2)
        assert len(point["ranks"]) == 2
        assert all(rank["trained_bytes"] > 0 and rank["last_seconds"] > 0 for rank in point["ranks"])
    assert {each["by"] for each in found["exchanges"]} == {"parameter_server", "tf_multiworker"}
    command = [sys.executable, "-m", "src.predict", "--profile", "profile", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    asked = subprocess.run(
        command, cwd=commands.folder, env=environment, capture_output=True, text=True, timeout=120
    )
    assert asked.returncode == 0, asked.stderr
    assert sum(" ms " in line for line in asked.stdout.splitlines()) == 2
