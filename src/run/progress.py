"""Show the progress of a run: step, loss, samples/s and time left, read from its ranks' records."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import TextColumn, TimeElapsedColumn

from src.config import Config
from src.machine.terminal_bar import TerminalBar
from src.run import files, phases
from src.run.tables import GrowingTable, read_table

# Without a terminal, what comes before the first step or after the last is said once it has taken this long.
PHASE_SECONDS = 5.0
# Last steps over which a rank's samples/s are averaged.
RECENT_STEPS = 50


class _RankProgress:
    """The samples, seconds and last loss that one rank has recorded so far.

    Attributes:
        samples: how many the rank has trained on, those before a resumed checkpoint included.
        seconds: of its steps.
        loss: that of its last step, `None` before the first one.
    """

    def __init__(self, path: Path) -> None:
        self.samples = 0.0
        self.seconds = 0.0
        self.loss: float | None = None
        self._table = GrowingTable(path)
        self._recent: list[tuple[float, float]] = []

    @property
    def rate(self) -> float:
        """Return the samples/s of the last `RECENT_STEPS` steps; 0 before the first step."""
        samples = sum(samples for samples, _ in self._recent)
        seconds = sum(seconds for _, seconds in self._recent)
        return samples / seconds if seconds else 0.0

    @property
    def last_samples(self) -> float:
        """Return the number of samples of the last step."""
        return self._recent[-1][0] if self._recent else 0.0

    def read(self) -> None:
        """Read the steps that were recorded since the last call."""
        rows = self._table.read()
        if self._table.replaced:
            # The rank was started again from an earlier step, and its table cut to that.
            self.samples, self.seconds = 0.0, 0.0
        for row in rows:
            if self.samples == 0:
                # The first step of a run that resumes a checkpoint isn't step 1; earlier ones were alike.
                self.samples = (row["step"] - 1) * row["samples"]
            self.samples += row["samples"]
            self.loss = row["loss"]
            self.seconds += row["seconds"]
            self._recent = [*self._recent[1 - RECENT_STEPS :], (row["samples"], row["seconds"])]


@contextmanager
def phase(text: str, seconds: float) -> Iterator[None]:
    """Say what goes on within the block: a line on a terminal that goes when it is over.

    Elsewhere a line is printed once the block has taken so many seconds.
    """
    if sys.stderr.isatty():
        with Console(stderr=True).status(text):
            yield
        return
    timer = threading.Timer(seconds, lambda: print(f"{text} ...", file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class LiveProgress(TerminalBar):
    """A display of a run's progress, which is refreshed by `tick`."""

    def __init__(self, config: Config, out: Path, train_samples: int) -> None:
        """Prepare to show the run in the directory `out`, whose epochs have `train_samples` samples."""
        self._config = config
        self._steps = train_samples // config.global_batch * config.epochs
        super().__init__(
            phases.STARTING,
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            total=self._steps,
            line=lambda _: f"  {self._figures()}",
            figures="",
        )
        # Ranks that divide batches have trained on them together: a worker that is lost, or slow, leaves its
        # parts to the others. Stages each see all samples, and one of them is enough.
        shown = config.degrees.viewers
        self._ranks = [_RankProgress(files.rank_folder(out, rank) / files.STEPS) for rank in shown]
        self._score = ""
        self._notes_path: Path | None = files.rank_folder(out, 0) / files.NOTES
        self._epochs_path = files.rank_folder(out, 0) / files.EPOCHS
        self._out = out
        # What rank 0 does besides its steps, since when, and whether that is printed.
        self._phase, self._phase_since, self._phase_printed = phases.STARTING, time.monotonic(), False

    def tick(self) -> None:
        """Read new steps, and show them and any note of rank 0."""
        self._read()
        if self._notes_path is not None and self._notes_path.exists():
            console = self._bar.console if self._bar is not None else Console(stderr=True)
            console.print(self._notes_path.read_text(), highlight=False, markup=False, soft_wrap=True)
            self._notes_path = None
        self._look_at_phase()
        if self._bar is not None or self._phase == phases.TRAINING:
            self.show(self._done, description=self._phase, figures=self._figures())
        elif not self._phase_printed and time.monotonic() - self._phase_since > PHASE_SECONDS:
            self._phase_printed = True
            print(f"  {self._phase} ...", file=sys.stderr, flush=True)

    def _look_at_phase(self) -> None:
        """See whether rank 0 trains, and what it does before its first step and after its last."""
        if self._done:
            phase = phases.TRAINING if self._done < self._steps else phases.FINISHING
        else:
            phase = phases.current(self._out)
        if phase != self._phase:
            self._phase, self._phase_since, self._phase_printed = phase, time.monotonic(), False

    @property
    def _done(self) -> float:
        """Return the number of global batches that all ranks together have trained on."""
        return sum(rank.samples for rank in self._ranks) / self._config.global_batch

    def _read(self) -> None:
        for rank in self._ranks:
            rank.read()
        rows = read_table(self._epochs_path)
        if rows and rows[-1]["score"] is not None:
            self._score = f"  {self._config.task['metrics'][0]} {rows[-1]['score']:.4f}"

    def _figures(self) -> str:
        rate = sum(rank.rate for rank in self._ranks)
        if not rate:
            return ""
        taken = max(rank.seconds for rank in self._ranks)
        remaining = (self._steps - self._done) * self._config.global_batch
        left = min(remaining / rate, self._config.max_minutes * 60 - taken)
        return (
            f"step {min(self._steps, int(self._done))}/{self._steps}  loss {self._loss()}  "
            f"{rate:,.0f} samples/s  {max(0, left):.0f} s left{self._score}"
        )

    def _loss(self) -> str:
        """Return the mean loss of the ranks' last steps, by their samples."""
        known = [(rank.loss, rank.last_samples) for rank in self._ranks if rank.loss is not None]
        weight = sum(samples for _, samples in known)
        return f"{sum(loss * samples for loss, samples in known) / weight:.4f}" if weight else "-"
