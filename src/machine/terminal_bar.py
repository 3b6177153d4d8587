"""Show a bar on the terminal, if there is one."""

from __future__ import annotations

import sys
from typing import Self

from rich.console import Console
from rich.progress import Progress, ProgressColumn


class TerminalBar:
    """A display on standard error while it is entered: a bar, or lines that a subclass prints."""

    def __init__(self, *columns: ProgressColumn) -> None:
        """Prepare a bar of `columns`, `None` without a terminal."""
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
