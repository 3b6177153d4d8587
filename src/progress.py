"""What the person who waits sees: step, loss, samples/s and time left, read from the ranks' own records."""

from __future__ import annotations

import csv
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from src.config import Config

PLAIN_SECONDS = 10.0


class _Rank:
    """What one rank has recorded so far."""

    def __init__(self, path: Path) -> None:
        self.done = 0
        self.seconds = 0.0
        self.loss = ""
        self._path = path
        self._offset = 0
        self._recent: list[float] = []

    @property
    def pace(self) -> float | None:
        """Seconds a step, lately."""
        return sum(self._recent) / len(self._recent) if self._recent else None

    def read(self) -> None:
        """Takes new steps."""
        try:
            with self._path.open("rb") as file:
                if file.seek(0, 2) < self._offset:
                    # It was started again, from an earlier step.
                    self._offset, self.seconds = 0, 0.0
                file.seek(self._offset)
                new = file.read()
        except OSError:
            return
        # The last line may be half written.
        whole = new[: new.rfind(b"\n") + 1]
        self._offset += len(whole)
        for row in csv.reader(whole.decode().splitlines()):
            if row[0] == "epoch":
                continue
            self.done, seconds, self.loss = int(row[1]), float(row[2]), row[4]
            self.seconds += seconds
            self._recent = [*self._recent[-49:], seconds]


class LiveProgress:
    """A bar on a terminal, a line every `PLAIN_SECONDS` elsewhere; `tick` reads what is new."""

    def __init__(self, config: Config, folder: Path, train_samples: int) -> None:
        self._config = config
        self._steps = train_samples // config.global_batch * config.epochs
        # Workers that take turns have steps of their own; the others' are the same ones.
        together = config.strategy["parity"] != "asynchronous"
        told = range(1 if together else config.workers)
        self._ranks = [_Rank(folder / "ranks" / str(rank) / "steps.csv") for rank in told]
        self._accuracy = ""
        self._notes_path: Path | None = folder / "ranks" / "0" / "notes.txt"
        self._epochs_path = folder / "ranks" / "0" / "epochs.csv"
        self._spoken = time.monotonic()
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            console = Console(stderr=True)
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[figures]}"),
                TimeElapsedColumn(),
                console=console,
                transient=True,
            )
            self._task = self._bar.add_task("starting", total=self._steps, figures="")

    def __enter__(self) -> LiveProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def tick(self) -> None:
        """Reads new steps and shows them."""
        self._read()
        if self._notes_path is not None and self._notes_path.exists():
            console = self._bar.console if self._bar is not None else Console(stderr=True)
            console.print(self._notes_path.read_text(), highlight=False, markup=False, soft_wrap=True)
            self._notes_path = None
        if self._bar is not None:
            phase = "training" if self._done else "starting"
            self._bar.update(self._task, completed=self._done, description=phase, figures=self._figures())
        elif self._done and time.monotonic() - self._spoken > PLAIN_SECONDS:
            self._spoken = time.monotonic()
            print(f"  {self._figures()}", file=sys.stderr, flush=True)

    @property
    def _done(self) -> int:
        return sum(rank.done for rank in self._ranks) // len(self._ranks)

    def _read(self) -> None:
        for rank in self._ranks:
            rank.read()
        if self._epochs_path.exists():
            rows = self._epochs_path.read_text().splitlines()
            if len(rows) > 1:
                self._accuracy = f"  accuracy {float(rows[-1].split(',')[5]):.4f}"

    def _figures(self) -> str:
        paces = [found for rank in self._ranks if (found := rank.pace)]
        if not paces:
            return ""
        # A step takes a share of the batch from each of those who take turns.
        pace = len(self._ranks) / sum(1 / each for each in paces)
        taken = max(rank.seconds for rank in self._ranks)
        left = min((self._steps - self._done) * pace, self._config.max_minutes * 60 - taken)
        last = self._ranks[0].loss
        loss = f"{float(last):.4f}" if last else "-"
        return (
            f"step {self._done}/{self._steps}  loss {loss}  "
            f"{self._config.global_batch / pace:,.0f} samples/s  {max(0, left):.0f} s left{self._accuracy}"
        )
