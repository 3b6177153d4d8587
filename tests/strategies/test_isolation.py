"""Nobody but a run's own processes reaches them: what they listen at, and what attackers get meanwhile."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from src.machine.namespaces import Namespace, NotAllowed
from src.run.variables import CLUSTER, TOKEN
from tests import leaks
from tests.machine.test_namespaces import ORDINARY
from tests.sockets import Listening, listening, own_namespace
from tests.support import environment_of

ROOT = Path(__file__).parents[2]
STRATEGIES = {
    path.stem: yaml.safe_load(path.read_text()) for path in sorted((ROOT / "conf/strategy").glob("*.yaml"))
}
WORDS = (
    "model=mlp", "hardware.device=cpu", "hardware.share_devices=true", "tracking.backend=none", "out=run",
    "dataset.limit=2560", "dataset.test_limit=640",
)  # fmt: skip
# Trains until it is ended.
ENDLESS = ("epochs=100000", "max_minutes=4", "evaluate_every=1000000")
pytestmark = pytest.mark.slow
# An instance of each way of processes to find each other.
MARKS = dict.fromkeys(("pipeline", "parameter_server", "mpi", "tf_multiworker", "tf_parameter_server"), ())


@pytest.fixture(scope="module", autouse=True)
def _namespaces() -> None:
    try:
        Namespace().close()
    except NotAllowed as reason:
        pytest.skip(f"no network namespace here: {reason}")


@pytest.mark.parametrize(
    ("words", "inside"),
    [
        *(
            pytest.param(
                (name,), not described.get("loopback", False), marks=MARKS.get(name, pytest.mark.long)
            )
            for name, described in STRATEGIES.items()
        ),
        (("ddp", "strategy.all_reduce=backend"), False),
        (("ddp", "hardware.isolate=always"), True),
        pytest.param(("parameter_server", "hardware.isolate=always"), True, marks=pytest.mark.long),
    ],
    ids=lambda words: "-".join(words) if isinstance(words, tuple) else None,
)
def test_what_a_run_listens_at_is_loopback_or_in_its_namespace(
    words: tuple[str, ...], inside: bool, commands: Any, until: Callable[..., float], mnist: None
) -> None:
    seen: set[Listening] = set()
    # From its start until it trains.
    with training(commands, until, f"strategy={words[0]}", *words[1:], seen=seen):
        seen |= listening(commands.left())
    assert [each for each in seen if each.open and each.namespace == own_namespace()] == []
    assert [each for each in seen if inside and each.namespace == own_namespace()] == []
    described = STRATEGIES[words[0]]
    # A single process has nobody to listen to.
    alone = described["launcher"].endswith(".SingleProcess") or described["supports"]["workers"]["max"] == 1
    assert bool(seen) == (not alone)
    facts = json.loads((commands.folder / "run" / "environment.json").read_text())
    assert facts["isolation"] == {"namespace": inside, "forbidden": None}
    assert commands.left() == []


@contextlib.contextmanager
def training(
    commands: Any, until: Callable[..., float], *words: str, seen: set[Listening] | None = None
) -> Iterator[None]:
    """An endless run that has begun to train, and ends with the block; what it listened at goes to `seen`."""
    # As from a shell that has all that people's shells have: it reaches no rank.
    process = commands.start(*words, *WORDS, *ENDLESS, **leaks.everything(commands.folder.parent))
    steps = commands.folder / "run" / "ranks" / "0" / "steps.csv"

    def trains() -> bool:
        if seen is not None:
            seen.update(listening(commands.left()))
        return process.poll() is not None or (steps.exists() and bool(rows(steps)))

    until(trains, 120, "the training begins")
    assert process.poll() is None, commands.output()
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


GRAPH = """
import sys
import tensorflow as tf
address, path = sys.argv[1:]
with tf.Graph().as_default() as graph, tf.compat.v1.Session(f"grpc://{address}", graph=graph) as session:
    print(session.run(tf.io.read_file(path)).decode())
"""


def read_by_graph(port: int, path: Path) -> subprocess.CompletedProcess[str]:
    """What another user's graph of two operations reads through TensorFlow's server at a port."""
    prefix = ORDINARY if os.getuid() == 0 else ()
    return subprocess.run(
        [*prefix, sys.executable, "-c", GRAPH, f"127.0.0.1:{port}", str(path)],
        cwd="/",
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "HOME": "/"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_another_users_graph_reads_files_through_a_server_only_where_the_run_is_not_isolated(
    module_commands: Callable[[], Any], until: Callable[..., float], tmp_path: Path, mnist: None
) -> None:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text("nobody else's business")
    words = ("strategy=tf_parameter_server", "workers=1")
    open_run, isolated = module_commands(), module_commands()
    with training(open_run, until, *words, "hardware.isolate=never"):
        (server,) = {each.port for each in listening(open_run.left()) if each.process == "server-0"}
        assert read_by_graph(server, secret).stdout.strip() == "nobody else's business"
    with training(isolated, until, *words):
        ports = {each.port for each in listening(isolated.left())}
        assert len(ports) == 3
        found = [address for each in psutil.net_if_addrs().values() for address in each]
        for address in (each.address for each in found if each.family == socket.AF_INET):
            for port in ports:
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection((address, port), timeout=2)


def framed(head: object) -> bytes:
    text = json.dumps(head).encode()
    return struct.pack(">I", len(text)) + text


def message(kind: str, *arrays: object, **figures: object) -> bytes:
    return framed({"kind": kind, "figures": figures, "arrays": arrays})


# Parameters of the network.
ELEMENTS = 784 * 128 + 128 + 128 * 10 + 10
PUSH = {"version": 0, "items": [], "step": 0}
FORGED = {
    # As a worker pushes, were it not for the token.
    "push": message("register", rank=0, clock=0)
    + message("push", ["float32", [ELEMENTS]], **PUSH)
    + struct.pack("f", 1.0) * ELEMENTS,
    "no message": framed([1, 2]),
    "first": message("push", ["float32", [10]], **PUSH) + bytes(40),
    "oversized": message("initialize", ["float64", [2**45]], entries=[]),
}


def attack(address: str, sent: bytes) -> None:
    """Send something and wait for the end of the connection."""
    host, port = address.split(":")
    with (
        contextlib.suppress(OSError),
        socket.create_connection((host, int(port)), timeout=5) as connection,
    ):
        # As long as a token: a shorter one is waited for.
        connection.sendall(sent.ljust(64, b"0"))
        while connection.recv(1 << 16):
            pass


def test_forged_pushes_leave_a_synchronous_run_as_it_is(
    module_commands: Callable[[], Any], until: Callable[..., float], mnist: None
) -> None:
    words = ("strategy=parameter_server", "workers=2", *WORDS, "epochs=40", "evaluate_every=1000000")
    undisturbed, attacked = module_commands(), module_commands()
    assert undisturbed.run(*words).returncode == 0
    # Processes that aren't forked show their variables, the token among them, to their own user.
    process = attacked.start(*words, "hardware.start_method=spawn")
    until(lambda: process.poll() is not None or named(attacked, "server-0"), 60, "the server starts")
    variables = environment_of(named(attacked, "server-0")[0])
    (server,), (coordinator,) = (json.loads(variables[CLUSTER])["addresses"][job] for job in JOBS)
    steps = attacked.folder / "run" / "ranks" / "0" / "steps.csv"
    until(lambda: process.poll() is not None or (steps.exists() and rows(steps)), 120, "the training begins")
    rounds = 0
    while process.poll() is None:
        for token in ("0" * 64, variables[TOKEN], ""):
            for name, each in FORGED.items():
                # With the token it would be taken for worker 0, which has come again.
                if name != "push" or token != variables[TOKEN]:
                    attack(server, token.encode() + each)
                    attack(coordinator, token.encode() + each)
        rounds += process.poll() is None
    assert process.returncode == 0, attacked.output()
    assert rounds > 0
    metrics = json.loads((attacked.folder / "run" / "metrics.json").read_text())
    assert metrics["restarts"] == 0, "a server that died comes back, and computes the same"
    kept = ("rank", "epoch", "step", "loss")
    first, second = (
        [[row[key] for key in kept] for row in rows(each.folder / "run" / "steps.csv")]
        for each in (undisturbed, attacked)
    )
    assert first == second
    log = (attacked.folder / "run/logs/server-0.log").read_text()
    assert "refused: a connection without the run's token" in log
    assert "refused: a head that is none of ours" in log
    assert "Traceback" not in log


JOBS = ("server", "coordinator")


def named(commands: Any, name: str) -> list[psutil.Process]:
    """The run's processes with a name."""
    found = []
    for process in commands.left():
        # What the command starts to ask about the code has ended soon.
        with contextlib.suppress(psutil.Error):
            found += [process] if process.name() == name else []
    return found


def test_a_model_that_downloads_ends_with_the_key_that_lets_it(commands: Any, mnist: None) -> None:
    model = ("model=custom", "model.path=tests.models.downloading.build", *WORDS[1:])
    ended = commands.run("strategy=ddp", "hardware.isolate=always", *model)
    assert ended.returncode == 2
    assert "error: model=tests.models.downloading.build: wants to download something" in ended.stderr
    assert "hardware.isolate=never" in ended.stderr
    assert commands.left() == []
