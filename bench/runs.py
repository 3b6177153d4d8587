"""Measure one run of a contestant, Scaleguide or a plain script, as fresh processes on pinned cores."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from src.config import command_line, compose
from src.data import available, catalog
from src.launch.launcher import launcher_of
from src.launch.local.hosts import LocalHosts
from src.launch.mpi_ranks import library_environment, mpiexec_path
from src.machine.devices import usable_cores
from src.measure.arithmetic import disturbed
from src.measure.summary import disturbance

# Runs of the present round that were disturbed, each with what did it.
DISTURBED: list[str] = []
PEERS = Path(__file__).parent / "peers"
OUT = Path("bench/out")
LIMIT_SECONDS = 600
# Peers of several processes: the strategy that starts the same processes, and the script with its arguments.
CLUSTERS = {
    "multiworker": ("tf_multiworker", ("tf_distributed.py", "multiworker")),
    "served": ("tf_parameter_server", ("tf_parameter_server.py",)),
}


def parse_rounds(bench: str, description: str | None) -> int:
    """Read the command line of `python -m bench.BENCH`; return the number of rounds that the user asks for.

    Makes the folder `OUT`, and ends the program on fewer than two cores. `description` is the text of
    `--help`.
    """
    parser = argparse.ArgumentParser(prog=f"python -m bench.{bench}", description=description)
    parser.add_argument("--rounds", type=int, default=7)
    chosen: int = parser.parse_args().rounds
    if len(usable_cores()) < 2:
        parser.error("two cores are needed")
    OUT.mkdir(parents=True, exist_ok=True)
    return chosen


@dataclass(frozen=True)
class Result:
    """The measures of one run: samples/s of the whole job, and seconds from the command to the first step."""

    rate: float
    startup: float


def run_scaleguide(
    strategy: str, model: str, batch: int, steps: int, *further: str, workers: int = 1, slot: int = 0
) -> Result:
    """Train `steps` steps with `python -m src.train`, and return the measures.

    Args:
        strategy: name of the strategy.
        model: name of the model.
        batch: the global batch, in samples.
        steps: number of optimizer steps.
        further: further overrides of the command line.
        workers: number of workers.
        slot: index of the only core that a run beside another one may use; 0 for no such limit.

    Raises RuntimeError where the run fails.
    """
    out = OUT / f"{strategy}-{model}-{slot}"
    words = [f"strategy={strategy}", f"model={model}", f"workers={workers}", f"batch={batch}"]
    cores = usable_cores()
    allowed = {cores[slot]} if slot else set(cores)
    metrics = train(*words, *further, f"dataset.limit={batch * steps}", out=out, cores=allowed)
    return Result(metrics["samples_per_second"], metrics["startup_seconds"])


def train(
    *words: str, out: Path, cores: set[int] | None = None, minutes: float | None = None
) -> dict[str, Any]:
    """Train with the overrides `words` on `cores`, or on all cores; return the metrics of the run.

    With `minutes` that is how long it trains at most, and it may take `LIMIT_SECONDS` more.

    Metrics of a cut model also have its partition as `cut`; those of a run with a timeline have the
    complete events as `timeline`.

    Raises RuntimeError where the run fails.
    """
    fixed = [f"max_minutes={minutes or 30}", f"out={out}", "overwrite=true", "tracking.backend=none"]
    limit = LIMIT_SECONDS + 60 * (minutes or 0)
    command = [sys.executable, "-m", "src.train", *words, *fixed]
    run_command(command, cores or set(usable_cores()), limit=limit)
    metrics = json.loads((out / "metrics.json").read_text())
    _note_disturbance(out.name, metrics)
    if (out / "partition.json").exists():
        metrics["cut"] = json.loads((out / "partition.json").read_text())
    if (out / "timeline.json").exists():
        events = json.loads((out / "timeline.json").read_text())["traceEvents"]
        metrics["timeline"] = [event for event in events if event["ph"] == "X"]
    return metrics


def sweep(*words: str, seeds: Sequence[int], out: Path) -> list[dict[str, Any]]:
    """Train one cell for each seed in one sweep; return the metrics of each cell.

    Metrics also have the entries of `environment.json` as `environment`. The cells' directories are made in
    the folder `out`.

    Raises RuntimeError where a cell fails.
    """
    chosen = ["-m", f"seed={','.join(map(str, seeds))}", f"out={out}/${{seed}}"]
    fixed = ["max_minutes=30", "overwrite=true", "tracking.backend=none"]
    run_command([sys.executable, "-m", "src.train", *words, *chosen, *fixed], set(usable_cores()))
    cells = []
    for seed in seeds:
        metrics, environment = (
            json.loads((out / str(seed) / name).read_text()) for name in ("metrics.json", "environment.json")
        )
        _note_disturbance(f"{out.name}/{seed}", metrics)
        cells.append({**metrics, "environment": environment})
    return cells


def _note_disturbance(name: str, metrics: Mapping[str, Any]) -> None:
    """Add a run to `DISTURBED` if it was."""
    if disturbed(metrics):
        DISTURBED.append(f"{name}: {disturbance(metrics).strip()}")


def summed_rate(model: str, batch: int, steps: int, *further: str, strategy: str = "single") -> float:
    """Return the summed samples/s of two independent runs at once, on one device each."""

    def run(slot: int) -> Result:
        return run_scaleguide(strategy, model, batch, steps, *further, slot=slot)

    with ThreadPoolExecutor(2) as pool:
        pair = list(pool.map(run, (0, 1)))
    return sum(result.rate for result in pair)


def run_peer(script: str, model: str, batch: int, steps: int, *, workers: int = 1) -> Result:
    """Run a peer script on the first `workers` cores and return its measures; several workers use torchrun.

    Raises RuntimeError where the script fails.
    """
    command = [sys.executable]
    if workers > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
    command += [str(PEERS / script), *_peer_arguments(model, batch, steps)]
    return _parse_result(run_command(command, set(usable_cores()[:workers])))


def run_tf_peer(kind: str, model: str, batch: int, steps: int) -> Result:
    """Run TensorFlow's peer script of a kind on the first two cores, and return its measures.

    `kind` is a strategy as the script calls it. Under `multiworker` and `served` the script is started once
    for each process of the cluster, under `mpi` by `mpiexec`.

    Raises RuntimeError where a process fails that should end well.
    """
    cores = set(usable_cores()[:2])
    arguments = _peer_arguments(model, batch, steps)
    if kind not in CLUSTERS:
        command = [sys.executable, str(PEERS / "tf_distributed.py"), kind, *arguments]
        if kind != "mpi":
            return _parse_result(run_command(command, cores))
        (chosen,) = compose.cells(command_line.parse(["strategy=tf_mpi", "workers=2"]))
        mpi_command = [str(mpiexec_path(chosen)), "-n", "2", *command]
        return _parse_result(run_command(mpi_command, cores, library_environment(chosen)))
    strategy, script = CLUSTERS[kind]
    (chosen,) = compose.cells(command_line.parse([f"strategy={strategy}", "workers=2"]))
    command = [sys.executable, str(PEERS / script[0]), *script[1:], *arguments]
    specs = launcher_of(chosen).process_specs(chosen, LocalHosts())
    serving = [
        subprocess.Popen(command, env=_environment(spec.environment), stderr=subprocess.DEVNULL)
        for spec in specs
        if spec.serves
    ]
    try:
        with ThreadPoolExecutor(2) as pool:
            environments = [spec.environment for spec in specs if not spec.serves]
            outputs = list(
                pool.map(lambda environment: run_command(command, cores, environment), environments)
            )
    finally:
        for process in serving:
            process.kill()
            process.wait()
    return _parse_result(outputs[0])


def _peer_arguments(model: str, batch: int, steps: int) -> list[str]:
    data, raw = _prepare_data()
    values = {
        "data": data,
        "raw": raw,
        "model": model,
        "batch": batch,
        "steps": steps,
        "started": time.time(),
    }
    return [f"--{key}={value}" for key, value in values.items()]


def _parse_result(output: str) -> Result:
    report = json.loads(output.strip().splitlines()[-1])
    return Result(report["samples_per_second"], report["startup_seconds"])


def run_command(
    command: list[str],
    cores: set[int],
    extra: Mapping[str, str] | None = None,
    limit: float = LIMIT_SECONDS,
) -> str:
    """Run a command on `cores`, with environment variables besides the present ones; return what it prints.

    Raises RuntimeError where the command fails, and TimeoutExpired where it takes more than `limit` seconds.
    """
    completed = subprocess.run(
        command,
        env=_environment(extra or {}),
        capture_output=True,
        text=True,
        timeout=limit,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    if completed.returncode:
        ends = f"{completed.stdout[-2000:]}\n{completed.stderr[-4000:]}"
        raise RuntimeError(f"{' '.join(command)} failed:\n{ends}")
    return completed.stdout


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", **extra}


def _prepare_data() -> tuple[Path, Path]:
    """Return the folder of the prepared MNIST arrays, and the one where torchvision finds the raw files."""
    dataset = catalog.choice("mnist")
    root = OUT / "torchvision"
    raw = root / "MNIST" / "raw"
    if not raw.exists():
        from src.data.sources import fetch

        fetch(dataset, raw, catalog.cache_folder())
    return available.ensure(dataset), root
