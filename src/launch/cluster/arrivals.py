"""Write what arrives of a host's changes into the run's directory, whole and in order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from src.launch.cluster.engine import HostLost
from src.launch.cluster.run_folder import Piece, write
from src.run import files

# What follows the name of a checkpoint while it is held back.
HELD = ".held-"


class Arrivals:
    """The files that one host changes in a job; several threads may fetch them.

    Attributes:
        out: the run's directory.
        names: the files that have come, by their paths within it.
    """

    def __init__(self, out: Path, host: str) -> None:
        """Write to `out` what comes from `host`, whose name no other host of the job has."""
        self.out, self.names = out, set[str]()
        self._host = host
        self._lock = threading.Lock()
        self._ended = False
        # These were told once, and couldn't be written here yet.
        self._unwritten: list[Piece] = []
        self._held: Path | None = None
        self._holds = 0

    def fetch(self, changes: Callable[[], list[Piece]]) -> Path | None:
        """Write all that `changes` tells, until that is nothing, unless `end` was called.

        A checkpoint arrives under another name, by which it is held back. Returns the path of the newest one,
        if another one has come.

        Raises:
            HostLost: as `changes` does; a checkpoint that has come is removed.
            OSError: where a file can't be written here; what comes after it is written by the next call.
        """
        with self._lock:
            try:
                while not self._ended and (pieces := self._unwritten or changes()):
                    self._unwritten = pieces
                    while self._unwritten:
                        self._write(self._unwritten[0])
                        self._unwritten = self._unwritten[1:]
            except HostLost:
                self._hold(None)
                raise
            held, self._held = self._held, None
            return held

    def end(self) -> None:
        """Fetch no more: what the host removes from now on is to stay here."""
        with self._lock:
            self._ended = True

    def _write(self, piece: Piece) -> None:
        """Write a piece."""
        is_checkpoint = piece.name in files.CHECKPOINTS.values() and not piece.removed
        # The number is that of the checkpoint's first piece.
        self._holds += is_checkpoint and piece.offset == 0
        name = f".{piece.name}{HELD}{self._holds}-{self._host}" if is_checkpoint else None
        write(self.out, piece, name, writer=f"-{self._host}")
        (self.names.discard if piece.removed else self.names.add)(piece.name)
        if name is not None and piece.last:
            self._hold(self.out / name)

    def _hold(self, checkpoint: Path | None) -> None:
        """Hold a checkpoint back in place of one that has come before."""
        if self._held is not None:
            self._held.unlink()
        self._held = checkpoint
