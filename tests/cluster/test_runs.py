"""Runs on two machines, by Ray: the losses of one host, and nothing is left on either."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.cluster.ray_cluster import TOKEN, RayCluster
from tests.conftest import Commands

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
Until = Callable[[Callable[[], object], float, str], float]
SHORT = ("model=mlp", "workers=2", "batch=128", "dataset.limit=3840", "dataset.test_limit=640")
QUICK = ("tracking.backend=none", "hardware.sample_seconds=0.1", "hardware.device=cpu")
# The first machine has a worker, and the second one.
CLUSTER = ("hardware=cluster", "hardware.hosts=2", f"hardware.token_file={TOKEN}")
OWN_OPTIONS = {
    "ddp": ("strategy.all_reduce=backend",),
    # Ray may be in an environment of its own.
    "mpi": ("strategy.mpiexec=mpiexec",),
    # Each machine has both parts of a copy.
    "hybrid": ("strategy.tensor=2", "microbatches=1", "model.dropout=0", "workers=4"),
}
STEPPING = (
    "--config-dir", f"{ROOT}/tests/plugin/conf", "strategy=mpi_steps", "strategy.mpiexec=mpiexec",
    "strategy.max_restarts=0", "model=mlp",
)  # fmt: skip
# Names of what a run starts on a machine.
OURS = ("rank-", "hydra_pmi_proxy", "mpiexec")


class Runs:
    """Runs of the first machine, in a folder that the tests see."""

    def __init__(self, cluster: RayCluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.cluster.run(
            ["-m", "src.train", f"hardware.address={self.cluster.address}", *words],
            env={"PYTHONPATH": str(ROOT)},
            cwd=self.folder,
            timeout=240,
        )


@pytest.fixture(scope="module")
def runs(ray_cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory, mnist: None) -> Iterator[Runs]:
    yield Runs(ray_cluster, tmp_path_factory.mktemp("runs"))


def losses(folder: Path) -> list[float]:
    with (folder / "steps.csv").open(newline="") as file:
        return [float(row["loss"]) for row in csv.DictReader(file) if row["rank"] == "0"]


def check_both_have_trained(runs: Runs, far: Path, near: Path) -> None:
    """Check that a run on two machines has the losses of one that was on one, and both in its trace."""
    assert losses(far) == losses(near) != []
    hosts = json.loads((far / "environment.json").read_text())["hosts"]
    assert [host["address"] for host in hosts] == [runs.cluster.machines.address(n) for n in (1, 2)]
    with (far / "trace.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    ranks = len({row["rank"] for row in rows})
    assert {(row["rank"], row["host"]) for row in rows} == {
        (str(rank), hosts[rank * len(hosts) // ranks]["name"]) for rank in range(ranks)
    }


@pytest.mark.parametrize("strategy", OWN_OPTIONS)
def test_two_machines_have_the_losses_of_one(runs: Runs, tmp_path: Path, strategy: str, mnist: None) -> None:
    options = (f"strategy={strategy}", *SHORT, *QUICK, *OWN_OPTIONS[strategy])
    shared = ("hardware.share_devices=true",)
    ended = runs.run(*options, *CLUSTER, *(shared if strategy == "hybrid" else ()), f"out={strategy}")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    near = Commands(tmp_path / "here")
    assert near.run(*options, *shared, "out=run").returncode == 0
    check_both_have_trained(runs, runs.folder / strategy, near.folder / "run")


def by_strategy(folder: Path) -> dict[str, Path]:
    """The runs of a sweep, by their strategies."""
    found = folder.glob("runs/*/metrics.json")
    return {json.loads(path.read_text())["strategy"]: path.parent for path in found}


# Of both frameworks.
@pytest.mark.parametrize(
    "swept",
    [
        ("parameter_server", "tf_multiworker"),
        pytest.param(("pipeline", "parameter_server", "tf_multiworker"), marks=pytest.mark.long),
    ],
    ids=len,
)
def test_a_sweep_on_two_machines_has_the_losses_of_one(
    runs: Runs, tmp_path: Path, mnist: None, swept: tuple[str, ...]
) -> None:
    options = (*SHORT, *QUICK, "-m", f"strategy={','.join(swept)}")
    ended = runs.run(*CLUSTER, *options)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    near = Commands(tmp_path / "here")
    assert near.run("hardware.share_devices=true", *options).returncode == 0
    far, close = by_strategy(runs.folder), by_strategy(near.folder)
    assert sorted(far) == sorted(close) == sorted(swept)
    for strategy in swept:
        check_both_have_trained(runs, far[strategy], close[strategy])


class Running:
    """A run of ranks that compute nothing and meet at every step, which goes on until it is ended."""

    def __init__(self, runs: Runs, until: Until, out: str, *further: str) -> None:
        self._runs, self._until, self._folder = runs, until, runs.folder / out
        self.machines = runs.cluster.machines
        words = (
            *(further or STEPPING),
            *CLUSTER,
            *QUICK,
            f"hardware.address={runs.cluster.address}",
            f"out={out}",
        )
        self._begun = self.machines.start(
            1,
            [str(runs.cluster.python), "-m", "src.train", *words],
            {**runs.cluster.environment, "PYTHONPATH": str(ROOT), "MPI4PY_LIBMPI": f"{sys.prefix}/lib:"},
            cwd=runs.folder,
        )
        steps = self._folder / "ranks" / "1" / "steps.csv"

        def stepped() -> bool:
            assert self._begun.poll() is None, self._begun.communicate()
            return steps.exists() and steps.read_text().count("\n") > 20

        until(stepped, 60, "the first steps")

    def of(self, machine: int, name: str) -> psutil.Process:
        """A process of a machine by its name."""
        return next(each for each in map(psutil.Process, self.machines.pids(machine)) if name in each.name())

    def agent(self, machine: int) -> psutil.Process:
        """The process of Ray that is a machine's agent, and the parent of its proxy."""
        return self.of(machine, "hydra_pmi_proxy").parent()

    def ended(self) -> int:
        """Its exit status."""
        self._begun.communicate(timeout=120)
        return self._begun.returncode

    def said(self, within: float) -> str:
        """What it has said at its end, and that took so many seconds at most."""
        begun = time.monotonic()
        said = self._begun.communicate(timeout=within + 30)[1]
        assert time.monotonic() - begun < within
        assert self._begun.returncode == 1
        return said

    def gone(self, *machines: int, within: float = 10.0) -> None:
        """Waits until these machines have nothing of it."""
        self._until(lambda: not any(map(self._left, machines)), within, "nothing left")

    def _left(self, machine: int) -> list[str]:
        found = []
        for pid in self.machines.pids(machine):
            with contextlib.suppress(psutil.Error):
                found += [name for name in OURS if name in psutil.Process(pid).name()]
        folders = self.machines.path(machine, "/tmp").glob("scaleguide-*")
        # That of the locks of devices stays.
        return [*found, *(folder.name for folder in folders if folder.name != f"scaleguide-{os.getuid()}")]


def test_another_token_and_another_address_are_refused(runs: Runs, mnist: None) -> None:
    wrong = runs.folder / "token"
    wrong.write_text("0" * 32)
    ended = runs.run("strategy=ddp", "hardware=cluster", f"hardware.token_file={wrong}", "out=never")
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (
        2,
        f"error: hardware.address={runs.cluster.address}: what listens there is no Ray cluster, or has "
        "another token than that of hardware.token_file",
    )
    elsewhere = runs.cluster.address.replace(":6379", ":6378")
    ended = runs.cluster.run(
        ["-m", "src.train", *CLUSTER, f"hardware.address={elsewhere}"], env={"PYTHONPATH": str(ROOT)}
    )
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"error: hardware.address={elsewhere}: no Ray cluster is there")


def test_a_killed_rank_and_agent_are_named_and_nothing_is_left(runs: Runs, until: Until) -> None:
    run = Running(runs, until, "rank")
    run.of(2, "rank-1").kill()
    assert "error: rank 1 was killed by SIGKILL" in run.said(within=10)
    run.gone(1, 2)
    run = Running(runs, until, "agent")
    run.agent(2).kill()
    second = runs.cluster.machines.address(2)
    assert f"error: host {second} was lost with rank 1: its agent has ended" in run.said(within=10)
    run.gone(1, 2)


def test_a_lost_agent_s_job_goes_on_from_its_checkpoint_to_the_same_end(
    runs: Runs, until: Until, tmp_path: Path, mnist: None
) -> None:
    options = ("strategy=ddp", *OWN_OPTIONS["ddp"], *SHORT, "epochs=40", "checkpoint_every=20")
    run = Running(runs, until, "resumed", *options)
    until((runs.folder / "resumed/checkpoint.pt").exists, 60, "a checkpoint")
    run.of(2, "rank-1").parent().kill()
    assert run.ended() == 0
    metrics = json.loads((runs.folder / "resumed/metrics.json").read_text())
    assert (metrics["status"], metrics["restarts"]) == ("ok", 1)
    near = Commands(tmp_path / "here")
    assert near.run(*options, *QUICK, "hardware.share_devices=true", "out=run").returncode == 0
    assert losses(runs.folder / "resumed") == losses(near.folder / "run")
    run.gone(1, 2)


@pytest.mark.long
def test_a_host_that_goes_silent_is_lost_in_time_and_its_ranks_end(runs: Runs, until: Until) -> None:
    machines = runs.cluster.machines
    run = Running(runs, until, "silent")
    machines.link_down(2)
    assert f"error: host {machines.address(2)} was lost with rank 1: " in run.said(within=15 + 10)
    run.gone(1, 2, within=15 + 10)
    machines.link_up(2)
    # Ray's node has ended itself.
    machines.power_off(2)
    machines.power_on(2)
    runs.cluster.join(2)


def test_a_host_that_is_switched_off_is_named(runs: Runs, until: Until) -> None:
    machines = runs.cluster.machines
    run = Running(runs, until, "off")
    machines.power_off(2)
    assert f"error: host {machines.address(2)} was lost with rank 1: " in run.said(within=10)
    run.gone(1)
    machines.power_on(2)
    runs.cluster.join(2)


def test_a_head_that_is_lost_ends_the_run_in_a_sentence(runs: Runs, until: Until) -> None:
    # The last one: it takes the cluster with it.
    run = Running(runs, until, "headless", *STEPPING, "strategy.max_restarts=1")
    run.of(1, "gcs_server").kill()
    said = run.said(within=30)
    assert "its agent has ended, and the head of the Ray cluster doesn't answer any more" in said
    assert f"hardware.address={runs.cluster.address}: the head of the Ray cluster doesn't answer" in said
    assert json.loads((runs.folder / "headless/metrics.json").read_text())["status"] == "failed"
    run.gone(1, 2, within=15 + 10)
