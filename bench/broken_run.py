"""Start a run on two emulated machines that is to be broken, and look what comes of it."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.cluster.machines import inner
from tests.cluster.ray_cluster import TOKEN, RayCluster

ROOT = Path(__file__).parents[1]
EPOCHS, STEPS, WORKERS = 40, 30, 2
WORDS = (
    "model=mlp", "model.dropout=0", f"epochs={EPOCHS}", "batch=128", f"workers={WORKERS}", "max_minutes=3",
    f"dataset.limit={128 * STEPS}", "dataset.test_limit=640", "checkpoint_every=20",
    "hardware=cluster", "hardware.hosts=2", "hardware.device=cpu", f"hardware.token_file={TOKEN}",
    "hardware.grace_minutes=4", "tracking.backend=none", "out=run", "overwrite=true",
)  # fmt: skip
STRATEGIES = {
    "ddp": ("strategy.all_reduce=backend",),
    "mpi": ("strategy.mpiexec=mpiexec",),
    "pipeline": ("strategy.partition=layers",),
    "parameter_server": ("strategy.mode=async", "strategy.servers=1"),
    "tf_multiworker": (),
    "tf_parameter_server": ("strategy.servers=1",),
}
# Names of processes that serve a strategy's ranks.
HELPERS = {"mpi": "hydra_pmi_proxy", "parameter_server": "server-0", "tf_parameter_server": "server-0"}
# The folder of locks of devices, which is made once and stays.
LOCKS = f"scaleguide-{os.getuid()}"
OURS = ("rank-", "server-", "coordinator", "hydra_pmi_proxy", "mpiexec")
# From the start of a run to its first checkpoint, from a fault to its end, and from there until all is gone.
BEGIN_SECONDS, END_SECONDS, GONE_SECONDS = 120.0, 420.0, 25.0
POLL_SECONDS = 0.05
# What a command says of a fault that it has noticed.
NOTICED = ("restarts)", "was lost with", "error:")
PARENT_KILLED = "parent killed"
# Words of what a command says about a fault.
TELLING = ("lost", "killed", "died", "full", "failed", "error")


@dataclass(frozen=True)
class Trial:
    """One run that was broken.

    Attributes:
        strategy: the strategy.
        fault: the fault.
        repetition: its number, from 1.
        status: that of the run, or else the exit status of the command.
        noticed_seconds: from the fault until the command said so, if it did; where that was killed, until
            nothing was left.
        restarts: of processes or of the job.
        lost: rows of steps.csv that are missing; of a run that failed, those that were here before the fault.
        left: processes and folders on the machines.
        said: what the command said of it.
    """

    strategy: str
    fault: str
    repetition: int
    status: str
    noticed_seconds: float | None
    restarts: int | None
    lost: int | None
    left: str
    said: str


class Run:
    """A run on two machines, begun on the first one."""

    def __init__(self, cluster: RayCluster, folder: Path, strategy: str) -> None:
        """Start the run in `folder`, and wait for its first checkpoint and steps of every rank."""
        self.cluster, self.folder, self.strategy = cluster, folder, strategy
        self.machines = cluster.machines
        self._said = folder / "said"
        shutil.rmtree(folder / "run", ignore_errors=True)
        words = (f"strategy={strategy}", *STRATEGIES[strategy], *WORDS, f"hardware.address={cluster.address}")
        with self._said.open("w") as said:
            self._command = self.machines.start(
                1,
                [str(cluster.python), "-m", "src.train", *words],
                {**cluster.environment, "PYTHONPATH": str(ROOT)},
                folder,
                subprocess.DEVNULL,
                said,
            )
        self.out = folder / "run"
        begun = until(lambda: self._has_begun() or self.ended, BEGIN_SECONDS)
        if not begun or self.ended:
            raise RuntimeError(f"{strategy} has no checkpoint: {self._said.read_text()[-500:]}")
        self.rows_before = len(self.rows())

    def _has_begun(self) -> bool:
        """Return whether there is a checkpoint, and each rank has taken a step."""
        ranks = {rank for rank, *_ in self.rows()}
        return bool(list(self.out.glob("checkpoint.*"))) and len(ranks) == WORKERS

    @property
    def ended(self) -> bool:
        """Return whether the command has ended."""
        return self._command.poll() is not None

    def parent(self) -> psutil.Process:
        """Return the process of the command."""
        return inner(self._command)

    def process(self, machine: int, name: str) -> psutil.Process:
        """Return a process of a machine whose name begins so."""
        found = [psutil.Process(pid) for pid in self.machines.pids(machine)]
        return next(each for each in found if each.name().startswith(name))

    def agent(self) -> psutil.Process:
        """Return the agent of the second machine: what has started its rank, or what runs that."""
        process = self.process(2, HELPERS["mpi"] if self.strategy == "mpi" else "rank-1")
        parent = process.parent()
        assert parent is not None
        return parent

    def rows(self) -> set[tuple[str, str, str]]:
        """Return the steps that are recorded here, by rank."""
        found = set()
        merged = self.out / "steps.csv"
        for path in [merged] if merged.exists() else sorted(self.out.glob("ranks/*/steps.csv")):
            with path.open(newline="") as file:
                for row in csv.DictReader(file):
                    found.add((row.get("rank") or path.parent.name, row["epoch"], row["step"]))
        return found

    def notices(self) -> float | None:
        """Wait until the command says that something is wrong; return the seconds, if it ever does."""
        begun = time.monotonic()
        until(lambda: self.ended or self._has_noticed(), END_SECONDS)
        return time.monotonic() - begun if self._has_noticed() else None

    def _has_noticed(self) -> bool:
        """Return whether the command has said that something is wrong."""
        text = self._said.read_text()
        return any(words in text for words in NOTICED)

    def result(self, fault: str, repetition: int, noticed: float | None) -> Trial:
        """Wait for the end of the run, and for the machines to have nothing of it."""
        begun = time.monotonic()
        if fault == PARENT_KILLED and until(lambda: not self.left(), GONE_SECONDS):
            noticed = time.monotonic() - begun
        until(lambda: self.ended, END_SECONDS)
        status, restarts = f"exit {self._command.poll()}", None
        if (path := self.out / "metrics.json").exists():
            metrics = json.loads(path.read_text())
            status, restarts = metrics["status"], metrics["restarts"]
        expected = EPOCHS * STEPS * WORKERS if status == "ok" else self.rows_before
        lost = max(0, expected - len(self.rows())) if status == "ok" or self.out.exists() else None
        until(lambda: not self.left(), GONE_SECONDS)
        said = [
            line.strip()
            for line in self._said.read_text().splitlines()
            if any(word in line for word in TELLING)
        ]
        return Trial(
            self.strategy,
            fault,
            repetition,
            status,
            None if noticed is None else round(noticed, 1),
            restarts,
            lost,
            " ".join(self.left()),
            " / ".join(said)[:200],
        )

    def left(self) -> list[str]:
        """Return what the machines that are on have of the run."""
        found = []
        for machine in self.machines.numbers:
            with contextlib.suppress(psutil.Error, OSError):
                for pid in self.machines.pids(machine):
                    with contextlib.suppress(psutil.Error):
                        name = psutil.Process(pid).name()
                        found += [f"{machine}:{name}"] if name.startswith(OURS) else []
                folders = self.machines.path(machine, "/tmp").glob("scaleguide-*")
                found += [f"{machine}:{folder.name}" for folder in folders if folder.name != LOCKS]
        return found


def until(condition: Callable[[], object], seconds: float) -> bool:
    """Wait until a condition holds; return whether it does after so many seconds at most."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True
