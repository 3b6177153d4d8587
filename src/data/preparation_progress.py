"""Show how far the preparation of a dataset is: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import sys
import time

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from src.machine.terminal_bar import TerminalBar

# Without a terminal, a line is printed as often as this.
PLAIN_SECONDS = 10.0


class PreparationProgress(TerminalBar):
    """A display of how many samples of a dataset are prepared, on standard error while it is entered."""

    def __init__(self, name: str, samples: int, finished: int) -> None:
        """Prepare to show dataset `name`, of whose `samples` so many are `finished` already."""
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("samples"),
            TimeRemainingColumn(),
        )
        self._name = name
        self._samples = samples
        self._finished = finished
        self._printed_at = time.monotonic()
        if self._bar is not None:
            self._task = self._bar.add_task(f"preparing {name}", total=samples, completed=finished)

    def advance(self, samples: int) -> None:
        """Count further samples."""
        self._finished += samples
        if self._bar is not None:
            self._bar.update(self._task, completed=self._finished)
        elif time.monotonic() - self._printed_at > PLAIN_SECONDS:
            self._printed_at = time.monotonic()
            print(
                f"  {self._name}: {self._finished} of {self._samples} samples prepared",
                file=sys.stderr,
                flush=True,
            )
