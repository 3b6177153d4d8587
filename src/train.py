"""Check every cell of a command line, then run each in fresh processes: `python -m src.train`.

This process is the parent. It imports Hydra, but neither torch nor tensorflow, so that a mistyped word is
answered at once, and no run inherits another's memory or threads.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from types import FrameType

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from src.config import Config, ConfigError, command_line, compose
from src.data import available
from src.data.errors import DataError
from src.launch import isolation
from src.launch.failure import disk_full
from src.launch.launcher import launcher_of
from src.launch.training import MISTAKE, Interrupted, train
from src.machine import process
from src.machine.locks import Lease
from src.run import directory_lock, leases
from src.run.directory import status_of
from src.run.directory_lock import Reservation
from src.run.exit_status import FULL
from src.tracking.store import tracking_uri
from src.tracking.sweep import begin_sweep, close_sweep

EXIT_MISTAKE = 2
EXIT_INTERRUPTED = 130
# When this process was started, before any import, in seconds since 1970.
COMMAND_GIVEN = process.start_time()
# The statuses of the cells that this process has run, in order.
STATUSES: list[str | None] = []
# The devices that this process holds for all cells of the command; none where Hydra's launcher is a plugin,
# whose processes each take devices for one cell.
HELD: list[Lease] = []
# The directories that this process has reserved for the cells of the command, under the same condition.
RESERVED: list[Reservation] = []


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
        line, cells = check(sys.argv[1:])
    except ConfigError as error:
        return _complain(f"error: {error}", EXIT_MISTAKE)
    except DataError as error:
        return _complain(f"error: {error}", 1)
    except OSError as error:
        if error.errno not in FULL:
            raise
        return _complain(disk_full(Path(error.filename or ".").parent), 1)
    except KeyboardInterrupt:
        return _complain("interrupted", EXIT_INTERRUPTED)
    STATUSES.clear()
    try:
        if cells:
            _take_devices(line, cells)
            launcher_of(cells[0]).prepare(cells[0])
        if cells and not line.multirun:
            _run_cell(cells[0], sweep=False)
        else:
            if cells:
                begin_sweep(
                    tracking_uri(cells[0]), compose.swept(line.overrides), len(cells), started=COMMAND_GIVEN
                )
            conf = str(compose.CONF.absolute())
            hydra.main(version_base="1.3", config_path=conf, config_name="config")(_run_hydra_job)()
    except ConfigError as error:
        return _complain(f"error: {error}", EXIT_MISTAKE)
    except leases.WaitedTooLong as error:
        return _complain(f"error: {error}", 1)
    except KeyboardInterrupt:
        close_sweep("KILLED")
        return _complain("interrupted; every rank was ended", EXIT_INTERRUPTED)
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
    return EXIT_MISTAKE if MISTAKE in statuses else 1


def check(arguments: list[str]) -> tuple[command_line.CommandLine, list[Config]]:
    """Compose and check all cells of a command line; fetch and prepare datasets that are missing.

    The flags in `sys.argv` are moved to the front, where Hydra expects them. The cells' directories are
    reserved for as long as the command runs.

    Returns:
        The parsed command line, and the cells to run: none where only information is asked for (`--help`).

    Raises:
        ConfigError: for the first mistake in any cell.
        DataError: for data that can't be fetched or read.
        OSError: on a full disk.
    """
    arguments = command_line.flags_first(arguments)
    line = command_line.parse(arguments)
    sys.argv[1:] = arguments
    # The cells that --help or --cfg is about are checked as well, and nothing is run.
    cells = compose.cells(line)
    for cell in cells:
        launcher_of(cell).check(cell)
        isolation.check(cell)
    if line.informational:
        return line, []
    reservation = directory_lock.reserve(cells)
    if _uses_plugin(line):
        reservation.close()
    else:
        RESERVED.append(reservation)
    for dataset in {cell.dataset["name"]: cell.dataset for cell in cells}.values():
        available.ensure(dataset)
    for cell in cells:
        _check_samples(cell)
    return line, cells


def _check_samples(config: Config) -> None:
    """Raise `ConfigError` where a step needs more samples than the dataset has."""
    samples = available.samples(config.dataset)
    if config.global_batch > samples:
        largest = samples * config.batch // config.global_batch
        raise ConfigError(
            f"batch={config.batch}: one step takes {config.global_batch} samples and "
            f"{config.dataset['name']} has {samples} to train on; choose batch <= {largest}"
        )


def _run_hydra_job(cfg: DictConfig) -> None:
    """Run one cell of a sweep; Hydra's launcher calls this with the composed cell."""
    words = list(HydraConfig.get().overrides.task)
    groups = [word for word in words if word.split("=")[0] in compose.GROUPS]
    _run_cell(compose.finish(cfg, words, compose.group_defaults(groups)), sweep=True)


def _take_devices(line: command_line.CommandLine, cells: list[Config]) -> None:
    """Take the devices of all cells for as long as the command runs, so that no other one comes in between.

    Where a plugin of Hydra runs the cells in several processes, each of them takes its own, and only named
    devices that are taken already are refused here.
    """
    if not _uses_plugin(line):
        HELD.append(leases.take(cells))
    elif named := [cell for cell in cells if cell.hardware.get("devices") is not None]:
        leases.take(named).close()


def _uses_plugin(line: command_line.CommandLine) -> bool:
    """Return whether a plugin of Hydra runs the cells, maybe in several processes."""
    return any(word.lstrip("+").startswith("hydra/launcher=") for word in line.overrides)


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
    except leases.WaitedTooLong as error:
        _complain(f"error: {error}", 1)
        STATUSES.append("failed")
    except OSError as error:
        if error.errno not in FULL:
            raise
        _complain(disk_full(Path(config.out)), 1)
        STATUSES.append("failed")
    finally:
        if own is not None:
            own.close()
        for held in RESERVED:
            held.release(out)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise `Interrupted`, as a signal handler."""
    raise Interrupted


def _complain(text: str, code: int) -> int:
    """Print `text` to standard error; return the exit status `code`."""
    print(text, file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
