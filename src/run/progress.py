"""Show the progress of a run: step, loss, samples/s and time left, read from its ranks' records."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from src.config import Config
from src.run import files
from src.run.tables import STEP_FIELDS, parse_rows, read_table

# Without a terminal, a line is printed as often as this.
PLAIN_SECONDS = 10.0
# Last steps over which a rank's pace is averaged.
RECENT_STEPS = 50


class _RankProgress:
    """The steps that one rank has recorded so far: their number, seconds, last loss and recent pace."""

    def __init__(self, path: Path) -> None:
        self.done = 0
        self.seconds = 0.0
        self.loss: float | None = None
        self._path = path
        self._offset = 0
        self._recent: list[float] = []

    @property
    def pace(self) -> float | None:
        """Return the mean seconds of the last `RECENT_STEPS` steps; `None` before the first step."""
        return sum(self._recent) / len(self._recent) if self._recent else None

    def read(self) -> None:
        """Read the steps that were recorded since the last call."""
        try:
            with self._path.open("rb") as file:
                if file.seek(0, 2) < self._offset:
                    # The rank was started again from an earlier step, and its table cut to that.
                    self._offset, self.seconds = 0, 0.0
                file.seek(self._offset)
                new = file.read()
        except OSError:
            return
        # The last line may be half written.
        whole = new[: new.rfind(b"\n") + 1]
        lines = whole.decode().splitlines()
        if self._offset == 0:
            # The first line is the heading.
            lines = lines[1:]
        self._offset += len(whole)
        for row in parse_rows(lines, STEP_FIELDS):
            self.done, self.loss = int(row["step"]), row["loss"]
            self.seconds += row["seconds"]
            self._recent = [*self._recent[1 - RECENT_STEPS :], row["seconds"]]


class LiveProgress:
    """A display of a run's progress: a bar on a terminal, elsewhere a line every `PLAIN_SECONDS`.

    It is refreshed by `tick`.
    """

    def __init__(self, config: Config, out: Path, train_samples: int) -> None:
        """Prepare to show the run in the directory `out`, whose epochs have `train_samples` samples."""
        self._config = config
        self._steps = train_samples // config.global_batch * config.epochs
        # Under a synchronous strategy all ranks do the same steps, and one of them is enough.
        shown = range(1 if config.synchronous else config.workers)
        self._ranks = [_RankProgress(files.rank_folder(out, rank) / files.STEPS) for rank in shown]
        self._accuracy = ""
        self._notes_path: Path | None = files.rank_folder(out, 0) / files.NOTES
        self._epochs_path = files.rank_folder(out, 0) / files.EPOCHS
        self._printed_at = time.monotonic()
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
        """Read new steps, and show them and any note of rank 0."""
        self._read()
        if self._notes_path is not None and self._notes_path.exists():
            console = self._bar.console if self._bar is not None else Console(stderr=True)
            console.print(self._notes_path.read_text(), highlight=False, markup=False, soft_wrap=True)
            self._notes_path = None
        if self._bar is not None:
            phase = "training" if self._done else "starting"
            self._bar.update(self._task, completed=self._done, description=phase, figures=self._figures())
        elif self._done and time.monotonic() - self._printed_at > PLAIN_SECONDS:
            self._printed_at = time.monotonic()
            print(f"  {self._figures()}", file=sys.stderr, flush=True)

    @property
    def _done(self) -> int:
        return sum(rank.done for rank in self._ranks) // len(self._ranks)

    def _read(self) -> None:
        for rank in self._ranks:
            rank.read()
        if rows := read_table(self._epochs_path):
            self._accuracy = f"  accuracy {rows[-1]['accuracy']:.4f}"

    def _figures(self) -> str:
        paces = [pace for rank in self._ranks if (pace := rank.pace)]
        if not paces:
            return ""
        # Where each rank has its own steps, a global batch is a step of each of them: their rates add up.
        pace = len(self._ranks) / sum(1 / each for each in paces)
        taken = max(rank.seconds for rank in self._ranks)
        left = min((self._steps - self._done) * pace, self._config.max_minutes * 60 - taken)
        last = self._ranks[0].loss
        loss = "-" if last is None else f"{last:.4f}"
        return (
            f"step {self._done}/{self._steps}  loss {loss}  "
            f"{self._config.global_batch / pace:,.0f} samples/s  {max(0, left):.0f} s left{self._accuracy}"
        )
