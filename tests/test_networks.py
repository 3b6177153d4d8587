"""Runs on emulated hosts: what crosses the links is counted, losses stay, and nothing is left of them."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from bench import links as kills
from src.launch.emulated.hosts import SWITCH_MODULE
from tests.launch.emulated.test_switch import Switch
from tests.support import instances

ROOT = Path(__file__).parents[1]
STRATEGIES = {
    path.stem: yaml.safe_load(path.read_text()) for path in sorted((ROOT / "conf/strategy").glob("*.yaml"))
}
ACROSS = [name for name, described in STRATEGIES.items() if described["supports"].get("hosts")]
SHORT = (
    "model=mlp", "workers=2", "batch=128", "dataset.limit=3840", "dataset.test_limit=640", "out=run",
    "hardware.device=cpu", "hardware.share_devices=true", "tracking.backend=none",
    "hardware.sample_seconds=0.05",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _possible() -> None:
    """Skips where this machine lets nobody emulate hosts."""
    Switch().end()


def read(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / "run" / name).read_text())


def losses(folder: Path) -> list[float]:
    with (folder / "run" / "steps.csv").open(newline="") as file:
        return [float(row["loss"]) for row in csv.DictReader(file) if row["rank"] == "0"]


def test_a_run_over_links_has_the_losses_of_one_host_and_counts_what_crosses(
    module_commands: Callable[[], Any], mnist: None
) -> None:
    far, near = module_commands(), module_commands()
    assert near.run("strategy=ddp", "strategy.all_reduce=backend", *SHORT).returncode == 0
    # The fork server of these tests, which stays, has been started by now.
    before = kills.traces()
    ended = far.run("strategy=ddp", "hardware=wifi", *SHORT)
    assert ended.returncode == 0, ended.stderr
    assert losses(far.folder) == losses(near.folder)
    metrics, network = read(far.folder, "metrics.json"), read(far.folder, "network.json")
    # Headers, and what the ranks agree on, come to the payload.
    assert 1.0 < metrics["network_bytes"] / metrics["payload_bytes"] < 1.05
    # On this host others send, too.
    assert read(near.folder, "metrics.json")["network_bytes"] is None
    assert {way["from"]: way["to"] for way in network["links"]} == {
        "worker-0": "worker-1",
        "worker-1": "worker-0",
    }
    assert all(way["asked"] == {"rate_mbit": 100, "round_trip_ms": 3} for way in network["links"])
    counted = network["traffic"]
    assert counted["worker-0"]["sent_bytes"] == pytest.approx(counted["worker-1"]["received_bytes"], rel=0.02)
    assert sum(each["sent_bytes"] for each in counted.values()) == metrics["network_bytes"]
    with (far.folder / "run" / "interfaces.csv").open(newline="") as file:
        assert {(row["host"], row["interface"]) for row in csv.DictReader(file)} == {
            (host, interface) for host in ("worker-0", "worker-1") for interface in ("lo", "eth0")
        }
    assert kills.traces().beyond(before) == []


@pytest.mark.slow
@pytest.mark.parametrize("strategy", instances(ACROSS, "mpi", "tf_parameter_server"))
def test_every_strategy_that_says_so_runs_across_hosts_and_its_bytes_cross(
    strategy: str, commands: Any, mnist: None
) -> None:
    batch = ("batch=640",) if strategy == "sandblaster_lbfgs" else ()
    ended = commands.run(f"strategy={strategy}", "hardware=mixed", *SHORT, *batch)
    assert ended.returncode == 0, ended.stderr
    metrics, network = read(commands.folder, "metrics.json"), read(commands.folder, "network.json")
    assert metrics["status"] == "ok"
    assert metrics["network_bytes"] >= 0.98 * metrics["payload_bytes"] > 0
    helpers = strategy in ("parameter_server", "tf_parameter_server", "sandblaster_lbfgs")
    servers = "servers" in STRATEGIES[strategy]
    assert list(network["hosts"]) == [
        "worker-0",
        "worker-1",
        *(["server-0"] if servers else []),
        *(["coordinator"] if helpers else []),
    ]
    # Nothing of a host's traffic stays within the host.
    with (commands.folder / "run" / "interfaces.csv").open(newline="") as file:
        inside = [int(row["sent_bytes"]) for row in csv.DictReader(file) if row["interface"] == "lo"]
    assert max(inside) < 0.01 * metrics["payload_bytes"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "words", "twice"),
    [
        ("fsdp", ("workers=2",), ["reduce_scatter"]),
        ("hybrid", ("workers=4", "strategy.tensor=2", "microbatches=1"), []),
        (
            "hybrid",
            ("workers=4", "strategy.shard=2", "strategy.pipeline=2", "microbatches=2"),
            ["reduce_scatter"],
        ),
    ],
    ids=["shards", "copies of parts", "stages of shards"],
)
def test_what_crosses_the_links_is_what_a_ring_sends_along_each_axis(
    strategy: str, words: tuple[str, ...], twice: list[str], commands: Any, mnist: None
) -> None:
    ended = commands.run(f"strategy={strategy}", "hardware=lan", *SHORT, *words, "model.dropout=0")
    assert ended.returncode == 0, ended.stderr
    metrics = read(commands.folder, "metrics.json")
    with (commands.folder / "run" / "exchange.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    # gloo does a reduce-scatter as an all-reduce.
    sent = sum(float(row["ring_bytes"]) * (2 if row["kind"] in twice else 1) for row in rows)
    # Headers come on top; where the counters are read a moment late, a few packets are missing.
    assert 0.98 < metrics["network_bytes"] / (sent * metrics["batches"]) < 1.05
    assert {row["axis"] for row in rows} == {
        axis for axis in ("data", "shard", "pipeline", "tensor") if metrics[f"{axis}_exchange_bytes"]
    }


def switches(process: Any) -> list[int]:
    """A run's switch, and the holders of its hosts."""
    found = []
    for each in psutil.Process(process.pid).children(recursive=True):
        # Some are just ending.
        with contextlib.suppress(psutil.Error):
            if SWITCH_MODULE in each.cmdline():
                found.append(each.pid)
    return found


@pytest.fixture
def training(commands: Any, until: Callable[..., float], mnist: None) -> Callable[..., Any]:
    """Starts a run over a LAN that would go on for minutes, and waits until it trains."""

    def start(strategy: str, *words: str) -> Any:
        process = commands.start(
            f"strategy={strategy}", "hardware=lan", *SHORT, "epochs=1000", "max_minutes=30", *words
        )
        steps = commands.folder / "run/ranks/0/steps.csv"
        until(
            lambda: process.poll() is not None or (steps.exists() and steps.stat().st_size > 200),
            60,
            "it trains",
        )
        return process

    return start


@pytest.mark.slow
def test_servers_whose_switch_is_killed_begin_again_on_new_hosts(
    training: Callable[..., Any], commands: Any, until: Callable[..., float]
) -> None:
    process = training("parameter_server")
    before = switches(process)
    os.kill(before[0], signal.SIGKILL)
    until(
        lambda: process.poll() is not None or len(set(switches(process)) - set(before)) == len(before),
        60,
        "there are new hosts",
    )
    process.terminate()
    assert process.wait(20) == 130
    assert "switch was killed by SIGKILL; all are started again" in commands.output()[1]
    assert commands.left() == []


@pytest.mark.slow
def test_a_killed_switch_ends_the_run_and_is_named(training: Callable[..., Any], commands: Any) -> None:
    process = training("ddp", "strategy.max_restarts=0")
    os.kill(switches(process)[0], signal.SIGKILL)
    assert process.wait(20) == 1
    assert "error: switch was killed by SIGKILL; its log is run/logs/switch.log" in commands.output()[1]
    assert commands.left() == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", instances(range(5), 4))
def test_a_kill_at_any_moment_leaves_no_namespace_interface_qdisc_or_process(
    seed: int, tmp_path: Path, mnist: None
) -> None:
    trial = kills.start_and_kill(tmp_path, random.Random(seed))
    assert trial.left == [], trial


def test_who_may_make_no_namespaces_is_told_what_it_takes(commands: Any) -> None:
    if os.getuid() or shutil.which("setpriv") is None:
        pytest.skip("only root can give up root's rights")
    commands.python = ["setpriv", "--bounding-set=-sys_admin,-net_admin", *commands.python]
    ended = commands.run("strategy=ddp", "hardware=vpn", *SHORT)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: hardware=vpn: emulated hosts need the right to make network namespaces")
    assert line.endswith("root lacks CAP_SYS_ADMIN, CAP_NET_ADMIN or /dev/net/tun, as in a container")
    assert list(commands.folder.iterdir()) == []
