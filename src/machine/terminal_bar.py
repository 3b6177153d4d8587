"""Show how far something has come: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn

# Without a terminal, a line is printed as often as this.
LINE_SECONDS = 10.0


class TerminalBar:
    """A display on standard error while it is entered: a bar, or without a terminal lines."""

    def __init__(
        self,
        label: str,
        *columns: ProgressColumn,
        total: float | None,
        done: int = 0,
        line: Callable[[float], str],
        **fields: Any,
    ) -> None:
        """Prepare to show how much is done of something.

        Args:
            label: what it is, before the bar.
            columns: what stands behind the bar.
            total: how much there is, `None` if that isn't known.
            done: how much of it is done already.
            line: returns what is printed without a terminal when so much is done.
            **fields: what columns show of the task's fields at first.
        """
        self._line = line
        self._amount: float = done
        self._printed_at = time.monotonic()
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), *columns)
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(label, total=total, completed=done, **fields)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, amount: float) -> None:
        """Show that so much more is done."""
        self.show(self._amount + amount)

    def show(self, amount: float, **fields: Any) -> None:
        """Show that so much is done, and changed fields of the bar's task."""
        self._amount = amount
        if self._bar is not None:
            self._bar.update(self._task, completed=amount, **fields)
        elif time.monotonic() - self._printed_at >= LINE_SECONDS:
            self._printed_at = time.monotonic()
            print(self._line(amount), file=sys.stderr, flush=True)
