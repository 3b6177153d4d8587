"""Look into a user's model and checkpoint before any rank is started, in a process that may import them.

The process is `src.preflight`. It is forked from the framework's fork server where ranks are, so that the
import isn't paid twice. Models of this project without a checkpoint need no look, unless they have sizes that
must go together: such a one (`check_sizes` in its file) is built without data.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from src.config import Config, ConfigError, OwnCodeError, import_paths
from src.config.schedules import SCHEDULES
from src.launch.launcher import LocalLauncher, launcher_of
from src.launch.local.warm_start import spawn_for
from src.launch.spawn import QUIET, spawn_child
from src.run.progress import phase
from src.run.variables import PARENT, THREADS

# A mistake is told within this time, and then in one line.
SILENT_SECONDS = 30.0
# A look depends on a part of what these options of a strategy say.
SHAPES = ("partition", "schedule")
# What looks have found, by the key of their cells.
_found: dict[str, dict[str, Any]] = {}


def inspect(cells: Sequence[Config]) -> None:
    """Build each model of the user's own among `cells`, and read each checkpoint, once.

    Raises:
        ConfigError: for a model that can't be built as configured, or a checkpoint that can't be resumed.
        OwnCodeError: for an error in the user's own code.
    """
    for cell in {_key(cell): cell for cell in cells if is_needed(cell)}.values():
        _inspect(cell)


def is_needed(config: Config) -> bool:
    """Return whether a run uses what only a process with the framework can find a mistake in."""
    return bool(config.model.get("check_sizes")) or config.degrees.tensor > 1 or has_own(config)


def has_own(config: Config) -> bool:
    """Return whether a run uses code or files of the user's that need the framework to be looked into."""
    paths = [config.strategy["entry"], config.strategy.get("serve")]
    paths += [config.model[config.framework], config.task[config.framework]]
    foreign = any(path is not None and not import_paths.is_own(path) for path in paths)
    files = (config.resume, config.model.get("path"), config.model.get("pretrained"))
    return foreign or "package" in config.model or any(value is not None for value in files)


def _key(config: Config) -> str:
    """Return a text that is the same for cells in which the process would find the same."""
    keys = ["model", "task", "framework", "dataset", "precision", "batch_shares", "batchnorm"]
    if config.resume is not None:
        keys += ["resume", "seed", "epochs", "global_batch", "optimizer"]
    keys += ["degrees"] + ["microbatch", "virtual_stages"] * config.cuts
    # How often a state is saved is nothing to a look, but that it is.
    parts = [config.hardware.device, config.microbatches > 1, config.checkpoint_every is not None]
    parts.append({key: value for key, value in config.strategy.items() if key not in SHAPES})
    if config.cuts:
        partition, schedule = config.strategy["partition"], SCHEDULES.get(config.strategy.get("schedule", ""))
        # Names must be those of operations; backward passes in parts are compared as such.
        parts += [None if isinstance(partition, str) else partition, schedule is not None and schedule.splits]
    parts += [*(getattr(config, key) for key in keys)]
    return json.dumps(parts, sort_keys=True, default=str)


def _inspect(config: Config) -> None:
    """Run the process for one cell, and raise what it has found."""
    what = [f"resume={config.resume}"] if config.resume is not None else []
    what += [f"model={config.model['name']}"]
    limit = 60 * config.hardware.grace_minutes
    with (
        tempfile.TemporaryDirectory(prefix="scaleguide-") as folder,
        phase(f"looking into {' and '.join(what)}", SILENT_SECONDS),
    ):
        given, answer, log = (Path(folder, name) for name in ("config.yaml", "answer.json", "log"))
        given.write_text(yaml.safe_dump(dataclasses.asdict(config), sort_keys=False))
        # A launcher of another kind starts its ranks in its own way.
        local = isinstance(launcher_of(config), LocalLauncher)
        spawn = spawn_for(config) if local else spawn_child
        environment = {**dict.fromkeys(THREADS, "1"), "CUDA_VISIBLE_DEVICES": "", PARENT: str(os.getpid())}
        # What the user's code leaves among temporary files goes with the folder.
        environment |= {**QUIET, "TMPDIR": folder}
        command = [sys.executable, "-u", "-m", "src.preflight", str(given), str(answer)]
        process = spawn(command, environment, log)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            raise OwnCodeError(
                f"{_blamed(config)}: took longer than hardware.grace_minutes="
                f"{config.hardware.grace_minutes:g} to be built"
            ) from None
        finally:
            process.signal_group(signal.SIGKILL)
            process.wait()
        _judge(config, code, _read(answer), log)


def _judge(config: Config, code: int, answer: Mapping[str, Any] | None, log: Path) -> None:
    """Print the notes that the process with the exit status `code` has answered; raise what else it has.

    It may not have answered at all.
    """
    if answer is None:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"
        printed = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        last = f": {printed[-1].strip()}" if printed else ""
        raise OwnCodeError(f"{_blamed(config)}: the process that built it {how}{last}")
    if "mistake" in answer:
        raise ConfigError(answer["mistake"])
    if "failure" in answer:
        raise OwnCodeError(f"{_blamed(config)}: {answer['failure']}")
    for note in answer["notes"]:
        print(note, flush=True)
    _found[_key(config)] = {key: answer.get(key) for key in ("seconds", "compared", "facts")}


def found(config: Config) -> dict[str, Any] | None:
    """Return what the look into a cell's own code took, by how many samples stages were compared, and facts.

    `None` where this process has had no look.
    """
    return _found.get(_key(config))


def _blamed(config: Config) -> str:
    """Return the key and value that name the user's own code."""
    if config.model.get("path") is not None:
        return f"model.path={config.model['path']}"
    builder = config.model[config.framework]
    if not import_paths.is_own(builder):
        return f"model.{config.framework}={builder}"
    task, entry = config.task[config.framework], config.strategy["entry"]
    if not import_paths.is_own(task):
        return f"task.{config.framework}={task}"
    return f"model={config.model['name']}" if import_paths.is_own(entry) else f"strategy.entry={entry}"


def _read(answer: Path) -> dict[str, Any] | None:
    """Return the answer of the process, `None` if it gave none."""
    try:
        return json.loads(answer.read_text())
    except (OSError, ValueError):
        return None
