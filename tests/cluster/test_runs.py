"""Runs on two machines, by Ray: the losses of one host, and nothing is left on either."""

from __future__ import annotations

import csv
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.ray_cluster import TOKEN, RayCluster
from tests.conftest import Commands

pytestmark = pytest.mark.slow
SHORT = ("model=mlp", "workers=2", "batch=128", "dataset.limit=3840", "dataset.test_limit=640")
QUICK = ("tracking.backend=none", "hardware.sample_seconds=0.1", "hardware.device=cpu")
# The first machine has a worker, and the second one.
CLUSTER = ("hardware=cluster", "hardware.hosts=2", f"hardware.token_file={TOKEN}")
STRATEGIES = {
    "ddp": ("strategy.all_reduce=backend",),
    # Ray may be in an environment of its own.
    "mpi": ("strategy.mpiexec=mpiexec",),
    "pipeline": (),
    "parameter_server": (),
    "tf_multiworker": (),
}


class Runs:
    """Runs of the first machine, in a folder that the tests see."""

    def __init__(self, cluster: RayCluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder

    def run(self, *words: str, out: str) -> subprocess.CompletedProcess[str]:
        return self.cluster.run(
            ["-m", "src.train", *words, f"hardware.address={self.cluster.address}", f"out={out}"],
            env={"PYTHONPATH": str(Path(__file__).parents[2])},
            cwd=self.folder,
            timeout=120,
        )


@pytest.fixture(scope="module")
def runs(ray_cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory, mnist: None) -> Iterator[Runs]:
    yield Runs(ray_cluster, tmp_path_factory.mktemp("runs"))


def losses(folder: Path) -> list[float]:
    with (folder / "steps.csv").open(newline="") as file:
        return [float(row["loss"]) for row in csv.DictReader(file) if row["rank"] == "0"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_machines_have_the_losses_of_one(runs: Runs, tmp_path: Path, strategy: str, mnist: None) -> None:
    options = (f"strategy={strategy}", *STRATEGIES[strategy], *SHORT, *QUICK)
    ended = runs.run(*options, *CLUSTER, out=strategy)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    far = runs.folder / strategy
    near = Commands(tmp_path / "here")
    assert near.run(*options, "hardware.share_devices=true", "out=run").returncode == 0
    assert losses(far) == losses(near.folder / "run")
    hosts = json.loads((far / "environment.json").read_text())["hosts"]
    assert [host["address"] for host in hosts] == [runs.cluster.machines.address(n) for n in (1, 2)]
    with (far / "trace.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {(row["rank"], row["host"]) for row in rows} == {
        (str(n), host["name"]) for n, host in enumerate(hosts)
    }
