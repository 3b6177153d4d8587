"""Follow a job of Slurm's: pass on what its command prints, and tell how it has ended."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from pathlib import Path
from typing import IO

from src.config import Config
from src.launch import skipped_cells
from src.launch.slurm.scheduler import State
from src.launch.slurm.script import ERR, LOG, OUT, STATUS
from src.run.directory import status_of
from src.run.status import Status

# States that say no more than the exit status of the command itself.
ORDINARY = ("COMPLETED", "FAILED", "")
# What a node has written last may be seen here so much later, where a file system is that of several hosts.
SHARED_SECONDS = 10.0


def folder_of(config: Config) -> Path:
    """Return the folder of a job's own files, beside the run's directory, which the job replaces."""
    out = Path(config.out).absolute()
    return out.with_name(f".{out.name}.job")


def new_folder(config: Config) -> Path:
    """Make the folder of a job's own files, without those of an earlier job."""
    folder = folder_of(config)
    folder.mkdir(parents=True, exist_ok=True)
    for name in (LOG, OUT, ERR, STATUS):
        (folder / name).unlink(missing_ok=True)
    return folder


class Job:
    """A job that was submitted.

    Attributes:
        number: by which Slurm knows it.
        config: the configuration of its run.
        state: what Slurm has said of it last.
    """

    def __init__(self, number: str, config: Config) -> None:
        self.number, self.config = number, config
        self.state: State | None = None
        self._folder = folder_of(config)
        self._read = {OUT: 0, ERR: 0}
        # Its lines may be among those of other jobs.
        self._prefix = f"job {number}: " if config.hardware.jobs > 1 else ""
        _say(f"  job {number} is submitted: {Path(config.out).name}")

    def update(self, state: State) -> None:
        """Take note of the job's state, say it if it is another, and print what its command has printed."""
        if state != self.state and not state.ended:
            nodes = f" on {state.nodes}" if state.nodes else ""
            reason = "" if state.reason == "None" else f" ({state.reason})"
            _say(f"  job {self.number} is {state.name.lower()}{nodes}{reason}")
        self.state = state
        self.relay()

    def relay(self) -> None:
        """Print the lines that the command has printed since the last call."""
        for name, stream in ((OUT, sys.stdout), (ERR, sys.stderr)):
            try:
                with (self._folder / name).open("rb") as file:
                    self._copy(file, name, stream)
            except FileNotFoundError:
                # It hasn't begun.
                continue

    def end(self) -> Status:
        """Return the status of the run, whose job has ended; what is to say of that is printed."""
        assert self.state is not None
        ordinary = self.state.name in ORDINARY
        code, status = self._result()
        deadline = time.monotonic() + SHARED_SECONDS
        while ordinary and (code is None or (code == 0 and status is None)) and time.monotonic() < deadline:
            time.sleep(1)
            code, status = self._result()
        self.relay()
        if code == 0 and status is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            return status
        if code == Status.MISTAKE.command and ordinary:
            shutil.rmtree(self._folder, ignore_errors=True)
            return Status.MISTAKE
        if code is not None and ordinary:
            _say(f"  what job {self.number} has printed is in {self._folder}")
            return Status.FAILED
        reason = self._why()
        _say(f"error: {reason}")
        if self.config.tracking["study"] and status is None:
            skipped_cells.record(self.config, Status.FAILED, reason)
        return Status.FAILED

    def _copy(self, file: IO[bytes], name: str, stream: IO[str]) -> None:
        """Print the whole lines that are new in a file."""
        file.seek(self._read[name])
        new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read[name] += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            print(f"{self._prefix}{line}", file=stream, flush=True)

    def _result(self) -> tuple[int | None, Status | None]:
        """Return the exit status of the command and the status of its run, `None` of what isn't there."""
        out = Path(self.config.out)
        for folder in (self._folder, out, out.absolute().parent):
            # On a file system of several hosts a folder is looked at anew where it is listed.
            with contextlib.suppress(OSError):
                os.listdir(folder)
        code = None
        with contextlib.suppress(FileNotFoundError, ValueError):
            code = int((self._folder / STATUS).read_text())
        return code, status_of(out)

    def _why(self) -> str:
        """Return a sentence on a job that has ended before its command did."""
        assert self.state is not None
        log = self._folder / LOG
        ended = f"hardware={self.config.hardware.name}: job {self.number} has ended before its run did"
        ended += f" ({self.state.name or 'UNKNOWN'}, {self.state.reason})"
        if log.exists():
            return f"{ended}; its output is {log}"
        return f"{ended}, and left nothing in {self._folder}; submit from a folder that the job's nodes share"


def _say(text: str) -> None:
    """Print a line to standard error."""
    print(text, file=sys.stderr, flush=True)
