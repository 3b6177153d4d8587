"""What a killed process costs: SIGKILL at a random step, by `python -m bench.recovery`, five trials a kind.

Nothing here is a matter of speed: each trial either goes on as it should, or doesn't.
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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from src.launch.cluster import CLUSTER

STEPS = 200
BATCH = 64
# At the default rate stale gradients with momentum now and then leave a model that learns nothing.
STALE = ("optimizer.lr=0.01",)
SERVED = ("strategy=tf_parameter_server", "strategy.servers=2", *STALE)
TORCH_SERVED = ("strategy=parameter_server", "strategy.mode=async", "strategy.servers=2", *STALE)
LIMIT_SECONDS = 300.0
# No interpreter has imported TensorFlow in less.
ABSENT_SECONDS = 1.0
END_SECONDS = 10.0


@dataclass(frozen=True)
class Kind:
    """A job, and the task of its cluster that is killed; `restarts` is what the parent then counts."""

    words: tuple[str, ...]
    task: tuple[str, int]
    restarts: int
    steps: int = STEPS
    # Whether the task's rank must be seen to work again, while the others never stopped.
    returns: bool = False
    # Whether the job must end with it, soon, and name it.
    ends: bool = False


KINDS = {
    "a worker of tf_multiworker": Kind(
        ("strategy=tf_multiworker", "strategy.deterministic=true"), ("worker", 1), 1
    ),
    # The one whose records stand for the job's.
    "a worker of tf_parameter_server": Kind((*SERVED, "strategy.max_restarts=0"), ("worker", 0), 0),
    "a worker that returns": Kind(SERVED, ("worker", 1), 1, steps=5 * STEPS, returns=True),
    "a parameter server": Kind(SERVED, ("ps", 0), 1),
    "a worker of torch's parameter_server": Kind(
        (*TORCH_SERVED, "strategy.max_restarts=0"), ("worker", 0), 0, steps=2 * STEPS
    ),
    "a server of torch's parameter_server": Kind(TORCH_SERVED, ("server", 0), 1, steps=2 * STEPS),
    "a worker of hogwild": Kind(
        ("strategy=hogwild", "strategy.max_restarts=0", *STALE), ("worker", 1), 0, steps=2 * STEPS
    ),
    "a rank of mpi": Kind(("strategy=mpi",), ("rank", 1), 0, ends=True),
}


@dataclass(frozen=True)
class Trial:
    """How a job ended. `rows` are the (step, seconds) of each rank; `left` and `bound` are what it left
    behind."""

    code: int
    said: str
    restarts: int
    loss: float | None
    accuracy: float | None
    rows: dict[int, list[tuple[int, float]]]
    # Steps on disk when the task was killed.
    before: int
    # Seconds from then to the job's end.
    after: float
    left: list[int]
    bound: list[str]


def trial(kind: Kind, out: Path, *, kill_after: int | None) -> Trial:
    """Trains `STEPS` steps, and kills the task once its rank has recorded `kill_after` of them."""
    # What stands there would be kept until the new run is complete.
    shutil.rmtree(out, ignore_errors=True)
    words = (
        *kind.words,
        *("workers=2", "model=cnn", f"batch={BATCH}", f"dataset.limit={kind.steps * BATCH // 2}", "epochs=2"),
        *("checkpoint_every=20", "hardware.device=cpu", "hardware.share_devices=true"),
        *(f"out={out}", "tracking.backend=none", "max_minutes=10"),
    )
    command = [sys.executable, "-m", "src.train", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as parent:
        before, addresses = 0, set[str]()
        if kill_after is not None:
            before = _wait_for(parent, out / "ranks" / str(kind.task[1]) / "steps.csv", kill_after)
            for process, cluster, task in _tasks(parent.pid, out):
                addresses |= {address for kinds in cluster.values() for address in kinds}
                if task == kind.task:
                    process.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        said, _ = parent.communicate(timeout=LIMIT_SECONDS)
        after = time.monotonic() - killed
    metrics = json.loads((out / "metrics.json").read_text())
    rows: dict[int, list[tuple[int, float]]] = {}
    with (out / "steps.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            rows.setdefault(int(row["rank"]), []).append((int(row["step"]), float(row["seconds"])))
    return Trial(
        parent.returncode,
        said,
        metrics["restarts"],
        metrics["loss"],
        metrics["accuracy"],
        rows,
        before,
        after,
        [process.pid for process, _, _ in _tasks(parent.pid, out)],
        [address for address in addresses if _is_bound(address)],
    )


def problems(kind: Kind, done: Trial, undisturbed: Trial | None) -> list[str]:
    """What went otherwise than it should, in words."""
    expected = {
        f"exit status {done.code}": done.code == int(kind.ends),
        f"{done.restarts} restarts": done.restarts == kind.restarts,
        f"processes left: {done.left}": not done.left,
        f"ports left bound: {done.bound}": not done.bound,
    }
    if kind.ends:
        named = "{} {} was killed by SIGKILL".format(*kind.task)
        expected |= {
            f"it went on for {done.after:.1f} s": done.after <= END_SECONDS,
            "the lost one was not named": named in done.said,
        }
        return [what for what, holds in expected.items() if not holds]
    steps = sum(len(found) for found in done.rows.values())
    expected[f"{steps} steps recorded"] = steps == 2 * kind.steps
    numbers = [[step for step, _ in found] for found in done.rows.values()]
    numbered = all(found == list(range(1, len(found) + 1)) for found in numbers)
    expected["steps are missing or doubled"] = numbered
    expected[f"accuracy {done.accuracy}"] = (done.accuracy or 0.0) >= 0.9
    if kind.returns:
        # The longest of its steps is its absence.
        seconds = [seconds for _, seconds in done.rows[kind.task[1]]]
        absent = max(seconds)
        again = seconds[seconds.index(absent) + 1 :]
        expected["the lost worker was not used again"] = absent >= ABSENT_SECONDS and len(again) >= 10
    if undisturbed is not None:
        expected[f"loss {done.loss}, undisturbed {undisturbed.loss}"] = done.loss == undisturbed.loss
    return [what for what, holds in expected.items() if not holds]


def _wait_for(parent: subprocess.Popen[str], path: Path, steps: int) -> int:
    """Until so many steps are on disk; how many those are."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while parent.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if (found := path.read_bytes().count(b"\n") - 1) >= steps:
                return found
        time.sleep(0.02)
    raise RuntimeError(f"{path} never had {steps} steps")


def _tasks(parent: int, out: Path) -> Iterator[tuple[psutil.Process, dict[str, list[str]], tuple[str, int]]]:
    """Processes that a run's parent, or its mpiexec, has started, with their cluster and their task in it."""
    config = (out / "config.yaml").resolve()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            told = process.environ()
            *_, last = process.cmdline() or [""]
            ours = told.get("SCALEGUIDE_PARENT") == str(parent) or Path(process.cwd(), last) == config
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                if CLUSTER in told:
                    known = json.loads(told[CLUSTER])
                    yield process, known["cluster"], (known["kind"], known["number"])
                elif "TF_CONFIG" in told:
                    known = json.loads(told["TF_CONFIG"])
                    yield process, known["cluster"], (known["task"]["type"], known["task"]["index"])
                else:
                    # Without a rank it is MPI's own.
                    yield process, {}, ("rank", int(told.get("RANK", -1)))


def _is_bound(address: str) -> bool:
    host, port = address.split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def main() -> int:
    """Prints one line a trial; 1 if any went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=5)
    trials = parser.parse_args().trials
    out = Path("bench/out/recovery")
    wrong = 0
    for name, kind in KINDS.items():
        reference = trial(kind, out, kill_after=None) if "multiworker" in name else None
        for number in range(trials):
            after = random.Random(f"{name} {number}").randrange(10, STEPS // 3)
            done = trial(kind, out, kill_after=after)
            found = problems(kind, done, reference)
            wrong += bool(found)
            accuracy = "" if done.accuracy is None else f", accuracy {done.accuracy:.4f}"
            print(
                f"{name}, killed after {done.before} steps: {'; '.join(found) or 'as it should'} "
                f"(ended {done.after:.1f} s later{accuracy})",
                flush=True,
            )
    return int(wrong > 0)


if __name__ == "__main__":
    os.environ.pop("SCALEGUIDE_MAX_MINUTES", None)
    sys.exit(main())
