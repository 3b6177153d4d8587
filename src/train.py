"""Check every cell of a command line, then run each in fresh processes: `python -m src.train`.

This process is the parent. It imports Hydra, but neither torch nor tensorflow, so that a mistyped word is
answered at once, and no run inherits another's memory or threads.
"""

from __future__ import annotations

import os
import signal
import sys

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Ctrl-C during the imports below; nothing has begun yet. `main` sets the usual handler again.
    signal.signal(signal.SIGINT, lambda *_: (os.write(2, b"interrupted\n"), os._exit(130)))

import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig

from src.config import CannotRunHere, Config, ConfigError, OwnCodeError, command_line, compose, endings
from src.config.endings import FAILURE, INTERRUPTED, complain, unexpected
from src.config.slurm import is_submitted
from src.data.errors import DataError, DataMistake
from src.launch import exchange, inspection, not_run
from src.launch.cells import bring_data, check_launch
from src.launch.cluster.engine import HostLost
from src.launch.failure import disk_full
from src.launch.launcher import launcher_of
from src.launch.not_run import MISTAKE
from src.launch.slurm.jobs import Jobs
from src.launch.training import Interrupted, train
from src.machine import process
from src.machine.folders import FULL
from src.machine.locks import Lease
from src.run import directory_lock, leases
from src.run.directory import status_of
from src.run.directory_lock import Reservation
from src.tracking.store import tracking_uri
from src.tracking.sweep import begin_sweep, close_sweep, sweep_key

# When this process was started, before any import, in seconds since 1970.
COMMAND_GIVEN = process.start_time()
# The statuses of the cells that this process has run, in order.
STATUSES: list[str | None] = []
# The devices that this process holds for all cells of the command; none where Hydra's launcher is a plugin,
# whose processes each take devices for one cell.
HELD: list[Lease] = []
# The signals that have asked this process to end.
INTERRUPTED_BY: list[int] = []
# The directories that this process has reserved for the cells of the command, under the same condition.
RESERVED: list[Reservation] = []
# The jobs of cells that this process has submitted.
JOBS = Jobs()


class CellError(BaseException):
    """Carries an error of a cell past Hydra, which would print lines of its own about it."""


def main() -> int:
    """Run the command line; return 0, 1 after a failure, 2 for a user's mistake, 130 after Ctrl-C."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _run_command()
    finally:
        while RESERVED:
            RESERVED.pop().close()


def _run_command() -> int:
    """Check and run the command line; return the exit status."""
    try:
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, _interrupt)
        line, cells = check(sys.argv[1:])
    except CannotRunHere as error:
        if error.config is None or not error.config.tracking["study"]:
            return _answer(error)
        return _leave_out(error.config, not_run.SKIPPED, error)
    except (Exception, KeyboardInterrupt) as error:
        return _answer(error)
    try:
        inspection.inspect(cells)
    except (ConfigError, OwnCodeError) as error:
        if len(cells) == 1 and cells[0].tracking["study"]:
            return _leave_out(cells[0], not_run.FAILED, error)
        return _answer(error)
    except (Exception, KeyboardInterrupt) as error:
        return _answer(error)
    STATUSES.clear()
    try:
        _run_cells(line, cells)
        _end_jobs()
    except (Exception, KeyboardInterrupt, CellError) as error:
        JOBS.cancel()
        close_sweep("KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED")
        return _answer(error.__cause__ or error if isinstance(error, CellError) else error, begun=True)
    finally:
        while HELD:
            HELD.pop().close()
    if line.informational:
        return 0
    # A launcher plugin of Hydra may have run the cells in other processes.
    statuses = STATUSES or [status_of(Path(cell.out)) for cell in cells]
    crashed = any(status in (None, "failed", MISTAKE) for status in statuses)
    close_sweep("FAILED" if crashed else "FINISHED")
    # In a study the other cells go on, and the aggregate stage reports the failure.
    if not crashed or all(cell.tracking["study"] for cell in cells):
        return 0
    return endings.MISTAKE if MISTAKE in statuses else FAILURE


def _run_cells(line: command_line.CommandLine, cells: list[Config]) -> None:
    """Run all cells, one after the other; where there is none, have Hydra print what it is asked for."""
    if cells:
        _take_devices(line, cells)
        if not is_submitted(cells[0]):
            launcher_of(cells[0]).prepare(cells[0])
    if cells and not line.multirun:
        # A job may be one of a sweep.
        _run_or_submit(cells[0], line.overrides, sweep=sweep_key() is not None)
        return
    if cells:
        begin_sweep(tracking_uri(cells[0]), compose.swept(line.overrides), len(cells), started=COMMAND_GIVEN)
    # Hydra then raises errors instead of printing them.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    conf = str(compose.CONF.absolute())
    hydra.main(version_base="1.3", config_path=conf, config_name="config")(_run_hydra_job)()


def _answer(error: BaseException, *, begun: bool = False) -> int:
    """Print one line about what has ended the command, and return the exit status.

    `begun` says that ranks may have been started.
    """
    if isinstance(error, KeyboardInterrupt) or INTERRUPTED_BY:
        return complain("interrupted; every rank was ended" if begun else "interrupted", INTERRUPTED)
    if isinstance(error, ConfigError | DataMistake):
        return complain(f"error: {error}", endings.MISTAKE)
    if isinstance(error, DataError | OwnCodeError | leases.WaitedTooLong | HostLost):
        return complain(f"error: {error}", FAILURE)
    if isinstance(error, HydraException):
        return complain(f"error: {error}", endings.MISTAKE)
    if isinstance(error, OSError) and error.errno in FULL:
        return complain(disk_full(Path(error.filename or ".")), FAILURE)
    if isinstance(error, OSError) and error.filename is not None:
        return complain(f"error: {error.filename}: {error.strerror}", FAILURE)
    return unexpected(error)


def _leave_out(config: Config, status: str, reason: Exception) -> int:
    """Record a study's cell that is not run, print why, and return the exit status: the other cells go on."""
    try:
        if not RESERVED:
            RESERVED.append(directory_lock.reserve([config]))
        not_run.record(config, status, str(reason))
    except (ConfigError, OSError) as error:
        return _answer(error)
    return complain(f"{'error' if status == not_run.FAILED else status}: {reason}", 0)


def check(arguments: list[str]) -> tuple[command_line.CommandLine, list[Config]]:
    """Compose and check all cells of a command line; fetch and prepare datasets that are missing.

    The flags in `sys.argv` are moved to the front, where Hydra expects them. The cells' directories are
    reserved for as long as the command runs.

    Returns:
        The parsed command line, and the cells to run: none where only information is asked for (`--help`).

    Raises:
        ConfigError: for the first mistake in any cell.
        CannotRunHere: for a cell that another machine could run.
        HostLost: where a host of a cluster is lost meanwhile.
        DataError: for data that can't be fetched or read.
        OwnCodeError: for a launcher or other code of the user's own that can't be read.
        OSError: on a full disk.
    """
    if not os.path.exists("."):
        raise ConfigError("the folder that you stand in is not there any more")
    arguments = command_line.flags_first(arguments)
    line = command_line.parse(arguments)
    sys.argv[1:] = arguments
    # The cells that --help or --cfg is about are checked as well, and nothing is run.
    try:
        cells = compose.cells(line)
        if line.uses_plugin and any(map(is_submitted, cells)):
            raise ConfigError("hydra/launcher: Slurm has a job for each run; hardware.jobs=2 has two at once")
        for cell in cells:
            check_launch(cell)
    except CannotRunHere as error:
        if line.multirun or line.informational:
            # Of several cells none is run before all can be.
            raise ConfigError(str(error)) from error
        raise
    if line.informational:
        return line, []
    reservation = directory_lock.reserve(cells)
    if line.uses_plugin:
        reservation.close()
    else:
        RESERVED.append(reservation)
    bring_data(cells)
    return line, cells


def _run_hydra_job(cfg: DictConfig) -> None:
    """Run one cell of a sweep; Hydra's launcher calls this with the composed cell."""
    words = list(HydraConfig.get().overrides.task)
    groups = [word for word in words if word.split("=")[0] in compose.GROUPS]
    try:
        _run_or_submit(compose.finish(cfg, words, compose.group_defaults(groups)), words, sweep=True)
    except Exception as error:
        raise CellError from error


def _take_devices(line: command_line.CommandLine, cells: list[Config]) -> None:
    """Take the devices of all cells for as long as the command runs, so that no other one comes in between.

    Where a plugin of Hydra runs the cells in several processes, each of them takes its own, and only named
    devices that are taken already are refused here.
    """
    if not line.uses_plugin:
        HELD.append(leases.take(cells))
    elif named := [cell for cell in cells if cell.hardware.get("devices") is not None]:
        leases.take(named).close()


def _run_or_submit(config: Config, words: Sequence[str], *, sweep: bool) -> None:
    """Run a cell, of these overrides, or submit it once fewer jobs than `hardware.jobs` are under way."""
    if not is_submitted(config):
        _run_cell(config, sweep=sweep)
        return
    _end_jobs(config.hardware["jobs"] - 1)
    if not JOBS.submit(config, words, command_line.parse(sys.argv[1:]).config_dir):
        STATUSES.append("failed")


def _end_jobs(at_most: int = 0) -> None:
    """Wait until no more than `at_most` jobs are under way; add the statuses of those that have ended."""
    for config, status in JOBS.wait(at_most):
        STATUSES.append(status)
        for held in RESERVED:
            held.release(Path(config.out))


def _run_cell(config: Config, *, sweep: bool) -> None:
    """Run one cell and add its status to `STATUSES`; a cell that meets a full disk is `failed`."""
    started = time.time() if STATUSES else COMMAND_GIVEN
    own: Lease | None = None
    out = Path(config.out)
    try:
        if not any(held.holds(out) for held in RESERVED):
            # A plugin's process, or a name with the time in it, which Hydra has composed once more.
            RESERVED.append(directory_lock.reserve([config]))
        lease = HELD[0] if HELD else (own := leases.take([config], wait_for_named=True))
        # Nobody's start-up is what was waited for others to end.
        started += lease.waited_seconds if own or not STATUSES else 0.0
        chosen = lease.of(leases.request_of(config))
        STATUSES.append(train(config, chosen, started=started, sweep=sweep))
    except (leases.WaitedTooLong, exchange.NotMeasured, HostLost, CannotRunHere) as error:
        if isinstance(error, exchange.NotMeasured | CannotRunHere) and config.tracking["study"]:
            not_run.record(config, not_run.FAILED, str(error))
        complain(f"error: {error}", FAILURE)
        STATUSES.append("failed")
    except OSError as error:
        if error.errno not in FULL:
            raise
        complain(disk_full(Path(config.out)), FAILURE)
        STATUSES.append("failed")
    finally:
        if own is not None:
            own.close()
        for held in RESERVED:
            held.release(out)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise `Interrupted`, as a signal handler, and remember it: a library may raise another error of it."""
    INTERRUPTED_BY.append(number)
    raise Interrupted


if __name__ == "__main__":
    try:
        status = main()
    except KeyboardInterrupt as interrupt:
        status = _answer(interrupt)
    # What is left to do is short, and must not end in a traceback.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(status)
