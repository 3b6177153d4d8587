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

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig

from src.compat.hydra import split_sweep
from src.config import CannotRunHere, Config, ConfigError, OwnCodeError, command_line, compose
from src.config.command_line import CommandLine
from src.config.slurm import is_submitted
from src.launch import expected_time, finished_cells, skipped_cells
from src.launch.cell_checks import bring_data, check_launch
from src.launch.cluster.engine import HostLost
from src.launch.launcher import launcher_of
from src.launch.slurm.jobs import Jobs
from src.launch.supervise import inspection
from src.launch.supervise.failure import disk_full
from src.launch.supervise.substitute import NotMeasured
from src.launch.training import Interrupted, train
from src.machine import process
from src.machine.device_locks import Lease
from src.machine.folders import FULL
from src.run import directory_lock, exit_lines, leases
from src.run.directory import status_of
from src.run.directory_lock import Reservation
from src.run.exit_lines import complain
from src.run.status import Status
from src.tracking.store import tracking_uri
from src.tracking.sweep import begin_sweep, close_sweep, sweep_key


def main() -> int:
    """Run the command line; return 0, 1 after a failure, 2 for a user's mistake, 130 after Ctrl-C."""
    with contextlib.closing(Command()) as command:
        return command.run(sys.argv[1:])


class CellError(BaseException):
    """Carries an error of a cell past Hydra, which would print lines of its own about it."""


class Command:
    """One command line, and what it holds until it ends: devices for all its cells, and their directories."""

    def __init__(self) -> None:
        # When this process was started, before any import, in seconds since 1970.
        self._given = process.start_time()
        # How the cells have ended that this process has run, in order.
        self._statuses: list[Status] = []
        self._lease: Lease | None = None
        self._reservations: list[Reservation] = []
        self._jobs = Jobs()
        self._is_interrupted = False

    def __reduce__(self) -> tuple[type[Command], tuple[()]]:
        """Have a process of a launcher plugin of Hydra make a command of its own, which holds nothing."""
        return Command, ()

    def run(self, arguments: Sequence[str]) -> int:
        """Check the command line, run its cells, and return the exit status."""
        try:
            signal.signal(signal.SIGTERM, self._interrupt)
            if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
                signal.signal(signal.SIGINT, self._interrupt)
            line, cells, left = self._check(arguments)
        except (Exception, KeyboardInterrupt) as error:
            left_out = self._leave_out(error)
            return self._answer(error) if left_out is None else left_out
        try:
            self._run_cells(line, cells, left)
            self._end_jobs()
            if line.multirun and len(cells) > 1 and not cells[0].tracking["study"]:
                _show_sweep(line, cells)
        except (Exception, KeyboardInterrupt, CellError) as error:
            self._jobs.cancel()
            close_sweep("KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED")
            cause = error.__cause__ if isinstance(error, CellError) else None
            return self._answer(cause or error, begun=True)
        finally:
            if self._lease is not None:
                self._lease.close()
        return 0 if line.informational else self._exit_status(cells)

    def close(self) -> None:
        """Let others have the directories of the cells."""
        for reservation in self._reservations:
            reservation.close()

    def _check(self, arguments: Sequence[str]) -> tuple[CommandLine, list[Config], list[Config]]:
        """Compose and check all cells of a command line; fetch and prepare datasets that are missing.

        Returns the command line, all cells, and those that are left to be run: of a sweep, an earlier command
        may have finished some. The flags in `sys.argv` are moved to the front, where Hydra expects them. The
        cells' directories are reserved for as long as the command runs. No cells are to run where `--help` or
        the like is asked for.

        Raises `CommandError` for the first mistake in any cell, for what this machine lacks, and for data or
        code of the user's own that are of no use; `OSError` on a full disk.
        """
        if not os.path.exists("."):
            raise ConfigError("the folder that you stand in is not there any more")
        sys.argv[1:] = command_line.flags_first(arguments)
        line = command_line.parse(sys.argv[1:])
        # The cells that --help or --cfg is about are checked as well, and nothing is run.
        try:
            cells = compose.cells(line)
            if line.uses_plugin and any(map(is_submitted, cells)):
                raise ConfigError(
                    "hydra/launcher: Slurm has a job for each run; hardware.jobs=2 has two at once"
                )
            for cell in cells:
                check_launch(cell)
        except CannotRunHere as error:
            if line.multirun or line.informational:
                # None of several cells is run before all can be.
                raise ConfigError(str(error)) from error
            raise
        if line.informational:
            return line, [], []
        reservation = directory_lock.reserve(cells)
        if line.uses_plugin:
            reservation.close()
        else:
            self._reservations.append(reservation)
        bring_data(cells)
        left = [cell for cell in cells if not (line.multirun and finished_cells.is_finished(cell))]
        try:
            inspection.inspect(left)
        except (ConfigError, OwnCodeError) as error:
            error.config = cells[0] if len(cells) == 1 else None
            raise
        if left and len(cells) > 1:
            print(expected_time.sentence(left, len(cells) - len(left)), flush=True)
        return line, cells, left

    def _run_cells(self, line: CommandLine, cells: list[Config], left: list[Config]) -> None:
        """Run all cells, one after the other; where there is none, have Hydra print what it is asked for.

        Devices are taken for those that are `left` to be run.
        """
        if left:
            self._take_devices(line, left)
            if not is_submitted(left[0]):
                launcher_of(left[0]).prepare(left[0])
        if cells and not line.multirun:
            # A job may be one of a sweep.
            self._run_or_submit(cells[0], line.overrides, sweep=sweep_key() is not None)
            return
        if cells:
            uri, swept = tracking_uri(cells[0]), compose.swept(line.overrides)
            finished = len(cells) - len(left)
            begin_sweep(uri, swept, len(cells), started=self._given, finished=finished)
        # Hydra then raises errors instead of printing them.
        os.environ["HYDRA_FULL_ERROR"] = "1"
        conf = str(compose.CONF.absolute())
        hydra.main(version_base="1.3", config_path=conf, config_name="config")(self._run_hydra_job)()

    def _take_devices(self, line: CommandLine, cells: list[Config]) -> None:
        """Take the devices of all cells for as long as the command runs: no other one comes in between.

        Where a plugin of Hydra runs the cells in several processes, each of them takes its own, and only
        named devices that are taken already are refused here.
        """
        if not line.uses_plugin:
            self._lease = leases.take(cells)
        elif named := [cell for cell in cells if cell.hardware.devices is not None]:
            leases.take(named).close()

    def _run_hydra_job(self, cfg: DictConfig) -> None:
        """Run one cell of a sweep; Hydra's launcher calls this with the composed cell."""
        words = list(HydraConfig.get().overrides.task)
        try:
            config = compose.finish(cfg, words, compose.group_defaults(compose.groups_of(words)))
            self._run_or_submit(config, words, sweep=True)
        except Exception as error:
            raise CellError from error

    def _run_or_submit(self, config: Config, words: Sequence[str], *, sweep: bool) -> None:
        """Run a cell, of these overrides, or submit it once fewer jobs than `hardware.jobs` are under way.

        A cell of a sweep that an earlier command has finished is taken as it is.
        """
        if sweep and finished_cells.is_finished(config):
            print(f"{Path(config.out).name}: finished before; overwrite=true measures it again", flush=True)
            self._statuses.append(Status.OK)
            self._release(config)
            return
        if not is_submitted(config):
            self._statuses.append(self._run_cell(config, sweep=sweep))
            return
        self._end_jobs(config.hardware.jobs - 1)
        if not self._jobs.submit(config, words, command_line.parse(sys.argv[1:]).config_dir):
            self._statuses.append(Status.FAILED)

    def _end_jobs(self, at_most: int = 0) -> None:
        """Wait until no more than `at_most` jobs are under way; add the statuses of those that have ended."""
        for config, status in self._jobs.wait(at_most):
            self._statuses.append(status)
            self._release(config)

    def _run_cell(self, config: Config, *, sweep: bool) -> Status:
        """Run one cell and return its status; a cell that meets a full disk is `failed`."""
        started = time.time() if self._statuses else self._given
        try:
            if not any(held.holds(Path(config.out)) for held in self._reservations):
                # A plugin's process, or a name with the time in it, which Hydra has composed once more.
                self._reservations.append(directory_lock.reserve([config]))
            with contextlib.ExitStack() as own:
                lease = self._lease
                if lease is None:
                    lease = own.enter_context(contextlib.closing(leases.take([config], wait_for_named=True)))
                if self._lease is None or not self._statuses:
                    # Nobody's start-up is what was waited for others to end.
                    started += lease.waited_seconds
                return train(config, lease.of(leases.request_of(config)), started=started, sweep=sweep)
        except (leases.WaitedTooLong, NotMeasured, HostLost, CannotRunHere) as error:
            if isinstance(error, NotMeasured | CannotRunHere) and config.tracking["study"]:
                skipped_cells.record(config, Status.FAILED, str(error))
            exit_lines.answer(error)
            return Status.FAILED
        except OSError as error:
            if error.errno not in FULL:
                raise
            complain(disk_full(Path(config.out)), Status.DISK_FULL.command)
            return Status.FAILED
        finally:
            self._release(config)

    def _release(self, config: Config) -> None:
        """Let others have the directory of a cell."""
        for reservation in self._reservations:
            reservation.release(Path(config.out))

    def _exit_status(self, cells: Sequence[Config]) -> int:
        """End the sweep's run in MLflow, if there is one; return the exit status of the cells."""
        # A launcher plugin of Hydra may have run the cells in other processes.
        statuses = self._statuses or [status_of(Path(cell.out)) or Status.MISSING for cell in cells]
        codes = {status.command for status in statuses}
        close_sweep("FINISHED" if codes == {0} else "FAILED")
        # In a study the other cells go on, and the aggregate stage reports the failure.
        return 0 if all(cell.tracking["study"] for cell in cells) else max(codes)

    def _leave_out(self, error: BaseException) -> int | None:
        """Record a study's cell that is not run because of an error, and print why: the other cells go on.

        Returns the exit status, `None` for another error, which ends the command.
        """
        config = getattr(error, "config", None)
        if config is None or not config.tracking["study"]:
            return None
        status = Status.SKIPPED if isinstance(error, CannotRunHere) else Status.FAILED
        try:
            if not self._reservations:
                self._reservations.append(directory_lock.reserve([config]))
            skipped_cells.record(config, status, str(error))
        except (ConfigError, OSError) as reason:
            return self._answer(reason)
        return complain(f"{'error' if status is Status.FAILED else status}: {error}", 0)

    def _answer(self, error: BaseException, *, begun: bool = False) -> int:
        """Print one line about what has ended the command, and return the exit status.

        `begun` says that ranks may have been started.
        """
        if isinstance(error, KeyboardInterrupt) or self._is_interrupted:
            ended = "; every rank was ended" if begun else ""
            return complain(f"interrupted{ended}", Status.INTERRUPTED.command)
        if isinstance(error, HydraException):
            return complain(f"error: {error}", Status.MISTAKE.command)
        if isinstance(error, OSError) and error.errno in FULL:
            return complain(disk_full(Path(error.filename or ".")), Status.DISK_FULL.command)
        return exit_lines.answer(error)

    def _interrupt(self, *_: Any) -> None:
        """Raise `Interrupted` on a signal, and remember it: a library may raise another error of it."""
        self._is_interrupted = True
        raise Interrupted


def _show_sweep(line: CommandLine, cells: Sequence[Config]) -> None:
    """Print the table of a sweep's cells, and what they mean."""
    # Imported here because a user who has mistyped a word shouldn't wait for it.
    from src.report import console, sweep

    print(flush=True)
    rows = split_sweep(command_line.parse_overrides(line.overrides))
    shown, found = sweep.sweep_result([Path(cell.out) for cell in cells], rows, line.config_dir)
    console.print_views([shown])
    console.print_verdicts(found)


if __name__ == "__main__":
    exit_lines.leave(main)
