"""One rank: reads the resolved configuration, trains with its strategy, records.

Started by the parent (`src.train`) with its rank in the environment; on a machine without Hydra,
omegaconf or MLflow it can be started by hand on a `config.yaml` whose `tracking.backend` is `none`.
"""

from __future__ import annotations

import ctypes
import dataclasses
import errno
import gc
import json
import os
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from src import config as configuration
from src.config import Config, ConfigError
from src.launch import quota
from src.launch.ranks import EXIT_DISK_FULL, EXIT_MISTAKE, EXIT_OUT_OF_MEMORY
from src.models.adapt import import_path

PR_SET_PDEATHSIG = 1
OUT_OF_MEMORY = ("OutOfMemoryError", "MemoryError", "ResourceExhaustedError")


@dataclass(frozen=True)
class Run:
    """What a strategy's `train(run, recorder)` is given."""

    config: Config
    rank: int
    world_size: int
    arrays: Any  # src.data.arrays.Arrays
    folder: Path
    cores: tuple[int, ...]


def main() -> None:
    """Runs one rank; the argument is the path of `config.yaml`."""
    _follow_parent()
    cores = _pin()
    quota.join()
    path = Path(sys.argv[1])
    config = configuration.load(path)
    resume = os.environ.get("SCALEGUIDE_RESUME")
    if resume is not None:
        config = dataclasses.replace(config, resume=resume)
    rank = int(os.environ.get("RANK", "0"))
    folder = path.parent / "ranks" / str(rank)
    try:
        if "SCALEGUIDE_SERVES" in os.environ:
            _loaded(config.strategy["serve"])(config, cores, folder)
        else:
            _train(config, rank, path.parent, folder, cores)
    except ConfigError as mistake:
        print(mistake, flush=True)
        (folder / "mistake.txt").write_text(str(mistake))
        os._exit(EXIT_MISTAKE)
    except BaseException as error:
        traceback.print_exc()
        sys.stderr.flush()
        # Threads of a broken backend may block an orderly exit.
        os._exit(_exit_code(error))
    sys.stdout.flush()
    os._exit(0)


def _train(config: Config, rank: int, out: Path, folder: Path, cores: tuple[int, ...]) -> None:
    train = _loaded(config.strategy["entry"])
    from src.data import arrays
    from src.measure.recorder import Recorder

    data = arrays.of(config.dataset)
    run = Run(config, rank, int(os.environ.get("WORLD_SIZE", "1")), data, out, cores)
    tracker = _tracker(out) if rank == 0 else None
    started = float(os.environ.get("SCALEGUIDE_STARTED", time.time()))
    train(run, Recorder(config, rank, folder, started=started, tracker=tracker))


def _loaded(path: str) -> Any:
    """What an import path names, its framework with it."""
    # Collecting garbage while frameworks load costs a quarter of that time, and frees nothing.
    gc.disable()
    found = import_path(path)
    gc.freeze()
    gc.enable()
    return found


def _tracker(out: Path) -> Any:
    """Waits for the parent to open the MLflow run, which it does while the rank imports."""
    go = out / "ranks" / "go.json"
    if "SCALEGUIDE_PARENT" not in os.environ:
        return None
    while not go.exists():
        time.sleep(0.01)
    opened = json.loads(go.read_text())
    if opened["run_id"] is None:
        return None
    from src.tracking import RankTracker

    return RankTracker(opened["uri"], opened["run_id"])


def _follow_parent() -> None:
    """Dies with the parent, however that ends."""
    parent = os.environ.get("SCALEGUIDE_PARENT")
    if parent is None:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        os._exit(1)


def _pin() -> tuple[int, ...]:
    named = os.environ.get("SCALEGUIDE_CORES")
    if named:
        os.sched_setaffinity(0, [int(core) for core in named.split(",")])
    return tuple(sorted(os.sched_getaffinity(0)))


def _exit_code(error: BaseException) -> int:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return EXIT_DISK_FULL
    names = [kind.__name__ for kind in type(error).__mro__]
    if any(name in OUT_OF_MEMORY for name in names) or "can't allocate memory" in str(error):
        return EXIT_OUT_OF_MEMORY
    return 1


if __name__ == "__main__":
    main()
