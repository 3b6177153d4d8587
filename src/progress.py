"""What the person who waits sees: step, loss, samples/s and time left, read from rank 0's own records."""

from __future__ import annotations

import csv
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from src.config import Config

PLAIN_SECONDS = 10.0


class LiveProgress:
    """A bar on a terminal, a line every `PLAIN_SECONDS` elsewhere; `tick` reads what is new."""

    def __init__(self, config: Config, folder: Path, train_samples: int) -> None:
        self._config = config
        self._steps = train_samples // config.global_batch * config.epochs
        self._path = folder / "ranks" / "0" / "steps.csv"
        self._offset = 0
        self._done = 0
        self._seconds = 0.0
        self._recent: list[float] = []
        self._loss = ""
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

    def _read(self) -> None:
        try:
            with self._path.open("rb") as file:
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
            self._done, seconds, self._loss = int(row[1]), float(row[2]), row[4]
            self._seconds += seconds
            self._recent = [*self._recent[-49:], seconds]
        if self._epochs_path.exists():
            rows = self._epochs_path.read_text().splitlines()
            if len(rows) > 1:
                self._accuracy = f"  accuracy {float(rows[-1].split(',')[5]):.4f}"

    def _figures(self) -> str:
        if not self._recent:
            return ""
        pace = sum(self._recent) / len(self._recent)
        left = min((self._steps - self._done) * pace, self._config.max_minutes * 60 - self._seconds)
        loss = f"{float(self._loss):.4f}" if self._loss else "-"
        return (
            f"step {self._done}/{self._steps}  loss {loss}  "
            f"{self._config.global_batch / pace:,.0f} samples/s  {max(0, left):.0f} s left{self._accuracy}"
        )
