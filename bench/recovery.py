"""Kill a process of a job at a random step and check what becomes of the job: `python -m bench.recovery`.

Each kind of job and victim has five trials. No speeds are compared: a trial goes as it should, or doesn't.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

STEPS = 200
BATCH = 64
# At the default learning rate, stale gradients with momentum sometimes keep a model from learning.
STALE = ("optimizer.lr=0.01",)
SERVED = ("strategy=tf_parameter_server", "strategy.servers=2", *STALE)
TORCH_SERVED = ("strategy=parameter_server", "strategy.mode=async", "strategy.servers=2", *STALE)
LIMIT_SECONDS = 300.0
# A step takes some milliseconds; a worker that is started again is back after half a second at the earliest.
ABSENT_SECONDS = 0.3
END_SECONDS = 10.0


@dataclass(frozen=True)
class Kind:
    """A kind of trial: a job, the process of it that is killed, and what must follow.

    Attributes:
        words: overrides of the job on the command line of `src.train`.
        victim: name of the process that is killed.
        restarts: how many restarts the parent must count.
        steps: steps that each of the two workers completes, on average.
        returns: whether the victim must be seen to work again.
        ends: whether the job must end soon after the victim, and name the victim.
    """

    words: tuple[str, ...]
    victim: str
    restarts: int
    steps: int = STEPS
    returns: bool = False
    ends: bool = False

    @property
    def number(self) -> int:
        """Return the number at the end of the victim's name: a rank, or a server's number."""
        return int(self.victim.rpartition("-")[2])


KINDS = {
    "a worker of tf_multiworker": Kind(
        ("strategy=tf_multiworker", "strategy.deterministic=true"), "rank-1", 1
    ),
    # The one whose records stand for the job's.
    "a worker of tf_parameter_server": Kind((*SERVED, "strategy.max_restarts=0"), "rank-0", 0),
    "a worker that returns": Kind(SERVED, "rank-1", 1, steps=5 * STEPS, returns=True),
    "a parameter server": Kind(SERVED, "server-0", 1),
    "a worker of torch's parameter_server": Kind(
        (*TORCH_SERVED, "strategy.max_restarts=0"), "rank-0", 0, steps=2 * STEPS
    ),
    "a server of torch's parameter_server": Kind(TORCH_SERVED, "server-0", 1, steps=2 * STEPS),
    "a worker of hogwild": Kind(
        ("strategy=hogwild", "strategy.max_restarts=0", *STALE), "rank-1", 0, steps=2 * STEPS
    ),
    "a rank of mpi": Kind(("strategy=mpi", "strategy.max_restarts=0"), "rank-1", 0, ends=True),
}


@dataclass(frozen=True)
class Trial:
    """How a job of which one process was killed went on, and ended.

    Attributes:
        code: exit status of the parent.
        output: what the parent printed.
        restarts: how many restarts the parent counted.
        loss: final test loss.
        accuracy: final test accuracy.
        rows: (step, seconds) of each step on record, by rank.
        steps_before: steps on disk when the victim was killed.
        seconds_after: seconds from the kill to the job's end.
        left_processes: names of processes that outlived the job.
        left_ports: ports that the job used and that are still bound after its end.
    """

    code: int
    output: str
    restarts: int
    loss: float | None
    accuracy: float | None
    rows: dict[int, list[tuple[int, float]]]
    steps_before: int
    seconds_after: float
    left_processes: list[str]
    left_ports: list[int]


def run_trial(kind: Kind, out: Path, *, kill_after: int | None) -> Trial:
    """Train a job of this kind in the run directory `out`, and kill the victim on the way.

    The victim is killed once its rank has recorded `kill_after` steps, and never where that is `None`.

    Raises RuntimeError where so many steps are never recorded.
    """
    # An earlier run would otherwise be kept in `out` until the new one is complete.
    shutil.rmtree(out, ignore_errors=True)
    words = (
        *kind.words,
        "workers=2",
        "model=cnn",
        f"batch={BATCH}",
        f"dataset.limit={kind.steps * BATCH // 2}",
        "epochs=2",
        "checkpoint_every=20",
        "hardware.device=cpu",
        "hardware.share_devices=true",
        f"out={out}",
        "tracking.backend=none",
        "max_minutes=10",
    )
    command = [sys.executable, "-m", "src.train", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as parent:
        steps_before, ports = 0, set[int]()
        if kill_after is not None:
            steps_before = _wait_for_steps(parent, out / "ranks" / str(kind.number) / "steps.csv", kill_after)
            running = _find_processes(out)
            ports = {
                connection.laddr.port
                for process in running.values()
                for connection in process.net_connections("inet")
                if connection.status == psutil.CONN_LISTEN
            }
            running[kind.victim].send_signal(signal.SIGKILL)
        killed = time.monotonic()
        output, _ = parent.communicate(timeout=LIMIT_SECONDS)
        seconds_after = time.monotonic() - killed
    metrics = json.loads((out / "metrics.json").read_text())
    rows: dict[int, list[tuple[int, float]]] = {}
    with (out / "steps.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            rows.setdefault(int(row["rank"]), []).append((int(row["step"]), float(row["seconds"])))
    return Trial(
        parent.returncode,
        output,
        metrics["restarts"],
        metrics["loss"],
        metrics["accuracy"],
        rows,
        steps_before,
        seconds_after,
        list(_find_processes(out)),
        [port for port in ports if _is_bound(port)],
    )


def problems(kind: Kind, trial: Trial, undisturbed: Trial | None) -> list[str]:
    """Say what went otherwise in `trial` than it should, a sentence each.

    `undisturbed` is a trial of the same kind without a kill whose loss must be equal, `None` for any loss.
    """
    expected = {
        f"exit status {trial.code}": trial.code == int(kind.ends),
        f"{trial.restarts} restarts": trial.restarts == kind.restarts,
        f"processes left: {trial.left_processes}": not trial.left_processes,
        f"ports left bound: {trial.left_ports}": not trial.left_ports,
    }
    if kind.ends:
        message = f"{kind.victim.replace('-', ' ')} was killed by SIGKILL"
        expected |= {
            f"it went on for {trial.seconds_after:.1f} s": trial.seconds_after <= END_SECONDS,
            "the lost one was not named": message in trial.output,
        }
        return [what for what, holds in expected.items() if not holds]
    steps = sum(len(rows) for rows in trial.rows.values())
    expected[f"{steps} steps recorded"] = steps == 2 * kind.steps
    numbers = [[step for step, _ in rows] for rows in trial.rows.values()]
    complete = all(steps_of_rank == list(range(1, len(steps_of_rank) + 1)) for steps_of_rank in numbers)
    expected["steps are missing or doubled"] = complete
    expected[f"accuracy {trial.accuracy}"] = (trial.accuracy or 0.0) >= 0.9
    if kind.returns:
        # The longest step of the victim is the one in which it was absent.
        seconds = [seconds for _, seconds in trial.rows[kind.number]]
        absent = max(seconds)
        again = seconds[seconds.index(absent) + 1 :]
        expected["the lost worker was not used again"] = absent >= ABSENT_SECONDS and len(again) >= 10
    if undisturbed is not None:
        expected[f"loss {trial.loss}, undisturbed {undisturbed.loss}"] = trial.loss == undisturbed.loss
    return [what for what, holds in expected.items() if not holds]


def _wait_for_steps(parent: subprocess.Popen[str], path: Path, steps: int) -> int:
    """Wait until the table `path` has at least `steps` steps; return how many it has."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while parent.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if (recorded := path.read_bytes().count(b"\n") - 1) >= steps:
                return recorded
        time.sleep(0.02)
    raise RuntimeError(f"{path} never had {steps} steps")


def _find_processes(out: Path) -> dict[str, psutil.Process]:
    """Return, by name, the running processes that write their log into the run directory `out`."""
    logs = (out / "logs").resolve()
    processes = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(Path(file.path).parent == logs for file in process.open_files()):
                processes[process.name()] = process
    return processes


def _is_bound(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def main() -> int:
    """Run all trials and print a line for each; return 1 if any went wrong, else 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=5)
    trials = parser.parse_args().trials
    out = Path("bench/out/recovery")
    wrong = 0
    for name, kind in KINDS.items():
        reference = run_trial(kind, out, kill_after=None) if "multiworker" in name else None
        for number in range(trials):
            after = random.Random(f"{name} {number}").randrange(10, STEPS // 3)
            trial = run_trial(kind, out, kill_after=after)
            sentences = problems(kind, trial, reference)
            wrong += bool(sentences)
            accuracy = "" if trial.accuracy is None else f", accuracy {trial.accuracy:.4f}"
            print(
                f"{name}, killed after {trial.steps_before} steps: {'; '.join(sentences) or 'as it should'} "
                f"(ended {trial.seconds_after:.1f} s later{accuracy})",
                flush=True,
            )
    return int(wrong > 0)


if __name__ == "__main__":
    os.environ.pop("SCALEGUIDE_MAX_MINUTES", None)
    sys.exit(main())
