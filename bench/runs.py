"""One measured run of each contestant, as a fresh process pinned to the same cores."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from src import command_line, compose
from src.data import available
from src.launch import mpi, tf_cluster, tf_config
from src.launch.devices import usable_cores

PEERS = Path(__file__).parent / "peers"
OUT = Path("bench/out")
LIMIT_SECONDS = 600
# Peers of several processes: our strategy with the same ones, its launcher, the script.
CLUSTERS = {
    "multiworker": ("tf_multiworker", tf_config, ("tf_distributed.py", "multiworker")),
    "served": ("tf_parameter_server", tf_cluster, ("tf_parameter_server.py",)),
}


def rounds(bench: str, about: str | None) -> int:
    """How many rounds the user wants of `python -m bench.BENCH`; ends the program on fewer than two cores."""
    parser = argparse.ArgumentParser(prog=f"python -m bench.{bench}", description=about)
    parser.add_argument("--rounds", type=int, default=7)
    chosen: int = parser.parse_args().rounds
    if len(usable_cores()) < 2:
        parser.error("two cores are needed")
    OUT.mkdir(parents=True, exist_ok=True)
    return chosen


@dataclass(frozen=True)
class Result:
    """Throughput in samples/s of the whole job, and seconds from command to first step."""

    rate: float
    startup: float


def ours(
    strategy: str, model: str, batch: int, steps: int, *further: str, workers: int = 1, slot: int = 0
) -> Result:
    """`python -m src.train` over `steps` steps; `slot` picks the core when several run at once."""
    out = OUT / f"{strategy}-{model}-{slot}"
    words = [f"strategy={strategy}", f"model={model}", f"workers={workers}", f"batch={batch}"]
    cores = usable_cores()
    mine = {cores[slot]} if slot else set(cores)
    metrics = train(*words, *further, f"dataset.limit={batch * steps}", out=out, cores=mine)
    return Result(metrics["samples_per_second"], metrics["startup_seconds"])


def train(*words: str, out: Path, cores: set[int] | None = None) -> dict[str, Any]:
    """Metrics of one run; of a model that was cut, `cut`, and of one whose steps were timed, `timeline`
    (its complete events) as well."""
    fixed = ["max_minutes=30", f"out={out}", "overwrite=true", "tracking.backend=none"]
    _call([sys.executable, "-m", "src.train", *words, *fixed], cores or set(usable_cores()))
    metrics = json.loads((out / "metrics.json").read_text())
    if (out / "partition.json").exists():
        metrics["cut"] = json.loads((out / "partition.json").read_text())
    if (out / "timeline.json").exists():
        events = json.loads((out / "timeline.json").read_text())["traceEvents"]
        metrics["timeline"] = [event for event in events if event["ph"] == "X"]
    return metrics


def together(model: str, batch: int, steps: int, *, strategy: str = "single") -> float:
    """Summed samples/s of two independent runs on one device each, at once."""
    with ThreadPoolExecutor(2) as pool:
        pair = list(pool.map(lambda slot: ours(strategy, model, batch, steps, slot=slot), (0, 1)))
    return sum(result.rate for result in pair)


def peer(script: str, model: str, batch: int, steps: int, *, workers: int = 1) -> Result:
    """A peer script on the first `workers` cores; several workers run under torchrun."""
    command = [sys.executable]
    if workers > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
    command += [str(PEERS / script), *_peer_arguments(model, batch, steps)]
    return _result(_call(command, set(usable_cores()[:workers])))


def tf_peer(kind: str, model: str, batch: int, steps: int) -> Result:
    """TensorFlow's peer script on the first two cores; of `multiworker` and `served`, each process of it."""
    cores = set(usable_cores()[:2])
    arguments = _peer_arguments(model, batch, steps)
    if kind not in CLUSTERS:
        command = [sys.executable, str(PEERS / "tf_distributed.py"), kind, *arguments]
        if kind != "mpi":
            return _result(_call(command, cores))
        (chosen,) = compose.cells(command_line.parse(["strategy=tf_mpi", "workers=2"]))
        started = [str(mpi.program(chosen)), "-n", "2", *command]
        return _result(_call(started, cores, mpi.places(chosen)[0].environment))
    strategy, launcher, script = CLUSTERS[kind]
    (chosen,) = compose.cells(command_line.parse([f"strategy={strategy}", "workers=2"]))
    command = [sys.executable, str(PEERS / script[0]), *script[1:], *arguments]
    places = launcher.places(chosen)
    serving = [
        subprocess.Popen(command, env=_environment(place.environment), stderr=subprocess.DEVNULL)
        for place in places
        if place.serves
    ]
    try:
        with ThreadPoolExecutor(2) as pool:
            lasting = [place.environment for place in places if not place.serves]
            outputs = list(pool.map(lambda told: _call(command, cores, told), lasting))
    finally:
        for process in serving:
            process.kill()
            process.wait()
    return _result(outputs[0])


def _peer_arguments(model: str, batch: int, steps: int) -> list[str]:
    data, raw = _data()
    known = {"data": data, "raw": raw, "model": model, "batch": batch, "steps": steps, "started": time.time()}
    return [f"--{key}={value}" for key, value in known.items()]


def _result(output: str) -> Result:
    found = json.loads(output.strip().splitlines()[-1])
    return Result(found["samples_per_second"], found["startup_seconds"])


def _call(command: list[str], cores: set[int], extra: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command,
        env=_environment(extra or {}),
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", **extra}


def _data() -> tuple[Path, Path]:
    """Prepared MNIST, and a folder in which torchvision finds its raw files."""
    dataset = available.choice("mnist")
    root = OUT / "torchvision"
    raw = root / "MNIST" / "raw"
    if not raw.exists():
        from src.data.sources import fetch

        fetch(dataset, raw, available.cache_folder())
    return available.ensure(dataset), root
