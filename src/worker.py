"""Run one process of a run, a rank or a service: `python -m src.worker CONFIG`.

The parent (`src.train`) starts this process with its rank in the environment. CONFIG is the path of the run's
resolved `config.yaml`. It knows nothing of MLflow. A user can start the process by hand, even without Hydra,
omegaconf and MLflow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from src.config import Config, ConfigError, load
from src.machine import namespaces, process, quota
from src.run import files, phases, status, variables
from src.run.status import Status
from src.run.tables import write_text

if TYPE_CHECKING:
    from src.runtime.common.context import Service, Strategy


def main() -> None:
    """Run one process to its end, and exit with a status of `src.run.status`, which it announces."""
    # First, while there is a single thread. It may also undo what asks the kernel to end this process.
    namespaces.enter()
    cores = _set_up_process()
    path = Path(sys.argv[1])
    end = files.end_path(path.parent, os.environ.get(variables.PROCESS, "by-hand"))
    status.reserve(end)
    code = _run(path, cores).process
    # The disk may be full.
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    status.announce(end, code)
    # Threads of a broken backend may block an orderly exit.
    os._exit(code)


def _run(path: Path, cores: tuple[int, ...]) -> Status:
    """Run the process's part of the run with the configuration at `path`; return how it ends."""
    try:
        quota.join()
        config = load(path)
        resume = os.environ.get(variables.RESUME)
        if resume is not None:
            config = dataclasses.replace(config, resume=resume)
        folder = files.rank_folder(path.parent, variables.rank())
        try:
            if variables.SERVES in os.environ:
                serve: Service = _import(config.strategy["serve"])
                _enter_audit(config)
                serve(config, cores, folder)
            else:
                _train(config, path.parent, cores)
        except ConfigError as mistake:
            print(mistake, flush=True)
            folder.mkdir(parents=True, exist_ok=True)
            write_text(folder / files.MISTAKE, str(mistake))
            return Status.MISTAKE
    except BaseException as error:
        with contextlib.suppress(OSError):
            traceback.print_exc()
        return status.of_error(error)
    return Status.OK


def _train(config: Config, out: Path, cores: tuple[int, ...]) -> None:
    """Train as one rank of the run in the directory `out`, on these cores."""
    rank = variables.rank()
    folder = files.rank_folder(out, rank)
    phases.announce(folder, phases.importing(config.framework))
    strategy: Strategy = _import(config.strategy["entry"])
    _enter_audit(config)
    from src.data import prepared
    from src.measure.recorder import Recorder, RecordListener
    from src.runtime.common import step_profiler
    from src.runtime.common.context import RankContext

    started = float(os.environ.get(variables.STARTED, time.time()))
    imported = time.time()
    listeners: list[RecordListener] = [quota.Limit()]
    profiler = None
    # Where workers are processes of their own, each profiles itself.
    if config.profiler and "serve" not in config.strategy:
        profiler = step_profiler.of(config, rank, out)
        listeners.append(profiler)
    recorder = Recorder(config, rank, folder, started=started, listeners=listeners)
    if profiler is not None:
        profiler.follow(recorder)
    recorder.facts["import_seconds"] = imported - started
    phases.announce(folder, phases.MODEL)
    arrays = prepared.load(config.dataset)
    recorder.facts["tokens_per_sample"] = arrays.tokens
    strategy(RankContext(config, rank, variables.world_size(), arrays, out, cores), recorder)
    if not recorder.finished:
        raise RuntimeError(f"{config.strategy['entry']} returned without recorder.finish(status)")


def _enter_audit(config: Config) -> None:
    """Change this process as an audit asks for, before it builds anything."""
    if config.audit is not None and config.audit["enter"] is not None:
        _import(config.audit["enter"])(config)


def _import(path: str) -> Any:
    """Import and return the object with an import path; this also imports the framework that it uses."""
    # Collecting garbage while frameworks load costs a quarter of that time, and frees nothing.
    gc.disable()
    imported = resolve_name(path)
    gc.freeze()
    gc.enable()
    return imported


def _set_up_process() -> tuple[int, ...]:
    """Set up signals, name and cores as the environment says; return the cores that this process may use."""
    if variables.PARENT in os.environ:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        process.die_with(int(os.environ[variables.PARENT]))
    if variables.PROCESS in os.environ:
        process.set_name(os.environ[variables.PROCESS])
    if os.environ.get(variables.CORES):
        process.pin(int(core) for core in os.environ[variables.CORES].split(","))
    return tuple(sorted(os.sched_getaffinity(0)))


if __name__ == "__main__":
    main()
