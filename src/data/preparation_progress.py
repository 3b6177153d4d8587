"""Show how far the preparation of a dataset is: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

# Without a terminal, a line is printed as often as this.
PLAIN_SECONDS = 10.0


class PreparationProgress:
    """A display of how many samples of a dataset are prepared, on standard error while it is entered."""

    def __init__(self, name: str, samples: int, finished: int) -> None:
        """Prepare to show dataset `name`, of whose `samples` so many are `finished` already."""
        self._name = name
        self._samples = samples
        self._finished = finished
        self._printed_at = time.monotonic()
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("samples"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task(f"preparing {name}", total=samples, completed=finished)

    def __enter__(self) -> PreparationProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

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
