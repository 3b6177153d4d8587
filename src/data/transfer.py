"""Show how far a transfer of bytes has come: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Without a terminal, a line is printed as often as this.
PLAIN_SECONDS = 10.0
MEGABYTE = 1_000_000


@contextmanager
def shown(label: str, total: int | None, done: int = 0) -> Iterator[Callable[[int], None]]:
    """Show a transfer on standard error while the block runs, which says how many bytes each chunk has.

    Args:
        label: what is transferred.
        total: how many bytes there are, `None` if that isn't known.
        done: how many of these were transferred before.
    """
    if not sys.stderr.isatty():
        yield _Lines(label, total, done).add
        return
    # Imported here, for it takes as long as all else.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.progress import TransferSpeedColumn as Speed

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        Speed(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total, completed=done)
        yield lambda count: bar.advance(task, count)


class _Lines:
    """A transfer that is told of in lines."""

    def __init__(self, label: str, total: int | None, done: int) -> None:
        self._label = label
        self._total = total
        self._done = done
        self._said = time.monotonic()

    def add(self, count: int) -> None:
        """Count the bytes of a chunk; print a line if the last one is long ago."""
        self._done += count
        if time.monotonic() - self._said < PLAIN_SECONDS:
            return
        self._said = time.monotonic()
        of = f" of {megabytes(self._total)} ({self._done / self._total:.0%})" if self._total else ""
        print(f"{self._label}: {megabytes(self._done)}{of}", file=sys.stderr, flush=True)


def megabytes(count: int) -> str:
    """Return a number of bytes as it is shown."""
    return f"{count / MEGABYTE:,.1f} MB"
