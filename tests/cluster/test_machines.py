"""Emulated machines are apart as real ones are, fail as they do, leave nothing, and run Ray and Slurm."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from src.data.catalog import cache_folder
from src.machine.link import Direction, Link
from tests.cluster.boot import OWN_FOLDER
from tests.cluster.machines import Machines, inner, left
from tests.cluster.network import ROOT
from tests.cluster.ray_cluster import RayCluster
from tests.cluster.slurm import Slurm

ECHO = """
import socket
listening = socket.create_server(("", 7000))
print("ready", flush=True)
while True:
    connection, _ = listening.accept()
    while got := connection.recv(1):
        connection.sendall(got)
"""
# It prints each answer, and fails if it's told that there can be none.
ASK = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 7000)) as connection:
    while True:
        connection.sendall(b".")
        print(connection.recv(1).decode(), end="", flush=True)
        time.sleep(0.01)
"""
MAKER = """
from tests.cluster.machines import Machines
machines = Machines(2)
started = [machines.start(machine, ["sleep", "100"]) for machine in machines.numbers]
print(machines.mark, flush=True)
started[0].wait()
"""
TASKS = """
import os, socket, time, ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

ray.init(log_to_driver=False, logging_level="ERROR")

@ray.remote(num_cpus=0)
def where():
    return socket.gethostname(), os.nice(0), int(open("/proc/self/oom_score_adj").read())

while True:
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    # One that was killed counts until it has been silent for a while.
    if len(nodes) == 2:
        break
    time.sleep(0.1)
places = [where.options(scheduling_strategy=On(node, soft=False)).remote() for node in nodes]
print(sorted(ray.get(places)))
"""
# Ray tries for 20 seconds otherwise.
AT_ONCE = {"RAY_gcs_server_port_wait_time_s": "1"}


def traces() -> tuple[list[str], list[str], str]:
    """What machines might leave on this one but processes."""
    names = Path("/run/netns")
    named = sorted(os.listdir(names)) if names.exists() else []
    return sorted(os.listdir("/sys/class/net")), named, Path("/proc/self/mounts").read_text()


@contextlib.contextmanager
def answers(machines: Machines) -> Iterator[subprocess.Popen[str]]:
    """A process on the first machine that asks the second, and prints a dot for each answer."""
    server = machines.start(2, [sys.executable, "-c", ECHO])
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n"
    asking = machines.start(1, [sys.executable, "-u", "-c", ASK, machines.address(2)])
    yield asking
    for process in (asking, server):
        process.kill()


def answered(asking: subprocess.Popen[str], seconds: float) -> bool:
    """Whether it gets an answer within so many seconds."""
    assert asking.stdout is not None
    file = asking.stdout.fileno()
    return bool(select.select([file], [], [], seconds)[0] and os.read(file, 1_000_000))


def tasks_of(cluster: RayCluster) -> str:
    """What a task on each of two nodes says of its machine, priority, and whether it is killed first."""
    done = cluster.run(["-c", TASKS])
    assert done.returncode == 0, done.stderr
    # Ray may print before that a node has been lost.
    return done.stdout.splitlines()[-1]


def test_each_has_a_name_an_address_a_core_and_processes_of_its_own(machines: Machines) -> None:
    cores = sorted(os.sched_getaffinity(0))
    for machine in machines.numbers:
        seen = "import os, socket; print(socket.gethostname(), socket.gethostbyname(socket.gethostname()))"
        seen += (
            "; print(*os.sched_getaffinity(0)); print(sum(each.isdigit() for each in os.listdir('/proc')))"
        )
        done = machines.run(machine, [sys.executable, "-c", seen])
        core = cores[(machine - 1) % len(cores)]
        expected = [f"machine{machine} {machines.address(machine)}", f"{core}", "2"]
        assert done.stdout.splitlines() == expected, done.stderr

    kinds = ["mnt", "uts", "ipc", "net", "pid"]
    inside = [f"/proc/self/ns/{kind}" for kind in kinds]
    seen_by = [machines.run(each, ["readlink", *inside]).stdout.split() for each in machines.numbers]
    outside = [os.readlink(each) for each in inside]
    assert all(len(set(own)) == 3 for own in zip(*seen_by, outside, strict=True)), seen_by


def test_the_second_sees_neither_code_nor_cache_nor_files_of_the_first(
    machines: Machines, tmp_path: Path
) -> None:
    for path in (ROOT, cache_folder(), tmp_path):
        assert machines.path(1, path).samefile(path)
        there = machines.path(2, path)
        # But for an environment that lies in the repository.
        seen = set(os.listdir(there)) - {".pytest_cache", ".venv"} if there.exists() else set()
        assert not seen
    for folder in ("/tmp", "/dev/shm", "/run"):
        machines.path(1, folder).joinpath("of-machine-1").touch()
        assert not machines.path(2, folder).joinpath("of-machine-1").exists()
        assert not Path(folder, "of-machine-1").exists()
    own = [sys.executable, "-c", "import yaml, src.config"]
    assert machines.run(1, own, cwd=ROOT).returncode == 0
    assert "No module named 'src'" in machines.run(2, own, cwd=ROOT).stderr


def test_a_command_gets_its_variables_and_hands_its_status_on(machines: Machines) -> None:
    done = machines.run(2, ["sh", "-c", "echo $GIVEN $XDG_RUNTIME_DIR; exit 3"], {"GIVEN": "yes"})
    assert (done.stdout, done.returncode) == ("yes\n", 3)
    with pytest.raises(subprocess.TimeoutExpired):
        machines.run(2, ["sleep", "100"], timeout=0.2)


def test_a_command_is_signalled_by_its_inner_process_and_ends_with_the_outer_one(
    machines: Machines, until: Callable[..., float]
) -> None:
    waiting = [sys.executable, "-c", "import signal; print('ready', flush=True); signal.pause()"]
    signalled, killed = (machines.start(1, waiting) for _ in range(2))
    for each in (signalled, killed):
        assert each.stdout is not None and each.stdout.readline() == "ready\n"
    inner(signalled).send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in signalled.communicate()[1]
    assert len(machines.pids(1)) == 1
    killed.kill()
    until(lambda: not machines.pids(1), 5, "nothing runs")


def test_power_off_ends_all_processes_of_a_machine_and_power_on_starts_it_empty(
    machines: Machines, until: Callable[..., float]
) -> None:
    other = machines.start(1, ["sleep", "100"])
    # One of them isn't waited for by anybody outside.
    started = machines.start(2, ["sh", "-c", "setsid sleep 100 & exec sleep 100"])
    until(lambda: len(machines.pids(2)) == 2, 5, "both run")
    machines.path(2, OWN_FOLDER / "lost").touch()
    machines.power_off(2)
    assert started.wait(5) != 0
    assert machines.pids(2) == []
    machines.power_on(2)
    assert machines.run(2, ["hostname"]).stdout == "machine2\n"
    assert not machines.path(2, OWN_FOLDER / "lost").exists()
    assert other.poll() is None
    other.kill()


def test_a_link_that_is_down_is_silent_and_loses_nothing_once_it_is_up(machines: Machines) -> None:
    connect = f"import socket; socket.create_connection(({machines.address(2)!r}, 7000), 0.3)"
    with answers(machines) as asking:
        assert answered(asking, 10)
        machines.link_down(2)
        # Those that were on their way.
        answered(asking, 0.1)
        assert not answered(asking, 0.5)
        assert "TimeoutError" in machines.run(1, [sys.executable, "-c", connect]).stderr
        machines.link_up(2)
        assert answered(asking, 10)
        assert asking.poll() is None


def test_links_can_be_slow_and_those_of_the_router_are_not_cut(new_machines: Callable[..., Machines]) -> None:
    slow = new_machines(2, Link(Direction(100, 20, 0.01), Direction(100, 20, 0.01)))
    with answers(slow) as asking:
        assert answered(asking, 10)
        # Where the kernel can have delays, it has the link.
        with contextlib.suppress(ValueError):
            slow.link_down(2)
            answered(asking, 0.1)
            assert not answered(asking, 0.5)


@pytest.mark.usefixtures("machines")
def test_close_leaves_nothing() -> None:
    before = traces()
    machines = Machines(2)
    machines.start(2, ["sh", "-c", "setsid sleep 100 & exec sleep 100"])
    assert machines.left()
    machines.close()
    assert machines.left() == []
    assert traces() == before


@pytest.mark.usefixtures("machines")
def test_a_killed_maker_leaves_nothing(until: Callable[..., float]) -> None:
    before = traces()
    maker = subprocess.Popen([sys.executable, "-c", MAKER], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert maker.stdout is not None
    mark = maker.stdout.readline().strip()
    # The switch, and of each machine: who holds its network, who waits for its first process, that, and ours.
    until(lambda: len(left(mark)) == 1 + 2 * 5, 5, "all run")
    maker.kill()
    maker.communicate()
    until(lambda: not left(mark), 5, "nothing runs")
    assert traces() == before


@pytest.mark.long
def test_ray_has_a_node_on_each_machine_and_runs_tasks_there(ray_cluster: RayCluster) -> None:
    assert tasks_of(ray_cluster) == "[('machine1', 0, 0), ('machine2', 0, 0)]"


@pytest.mark.long
def test_ray_refuses_who_has_another_token(ray_cluster: RayCluster) -> None:
    other = OWN_FOLDER / "other"
    ray_cluster.machines.path(1, other).write_text("0" * 64)
    done = ray_cluster.run(["-c", TASKS], env={"RAY_AUTH_TOKEN_PATH": str(other), **AT_ONCE})
    assert done.returncode and "AuthenticationError" in done.stderr


@pytest.mark.long
def test_a_machine_that_was_off_joins_ray_again(ray_cluster: RayCluster) -> None:
    ray_cluster.machines.power_off(2)
    ray_cluster.machines.power_on(2)
    ray_cluster.join(2)
    assert tasks_of(ray_cluster) == "[('machine1', 0, 0), ('machine2', 0, 0)]"


@pytest.mark.long
def test_slurm_starts_tasks_on_both_machines(slurm: Slurm) -> None:
    done = slurm.run(["srun", "-N2", "hostname"])
    assert sorted(done.stdout.split()) == ["machine1", "machine2"], done.stderr


@pytest.mark.long
def test_slurm_runs_a_job_to_its_end(slurm: Slurm) -> None:
    output = OWN_FOLDER / "job"
    job = slurm.submit("#!/bin/sh\nsrun hostname\n", "--nodes=2", f"--output={output}")
    assert slurm.wait(job) == "COMPLETED"
    assert sorted(slurm.machines.path(1, output).read_text().split()) == ["machine1", "machine2"]
    assert slurm.wait(slurm.submit("#!/bin/sh\nexit 3\n")) == "FAILED"


@pytest.mark.long
def test_slurm_cancels_a_job(slurm: Slurm, until: Callable[..., float]) -> None:
    job = slurm.submit("#!/bin/sh\nsleep 100\n")
    until(lambda: slurm.state(job) == "RUNNING", 30, "it runs")
    slurm.run(["scancel", job])
    assert slurm.wait(job) == "CANCELLED"
