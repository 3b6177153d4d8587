"""Show how far a transfer of bytes has come."""

from __future__ import annotations

from rich.progress import DownloadColumn, TimeRemainingColumn, TransferSpeedColumn

from src.machine.terminal_bar import TerminalBar


def shown(label: str, total: int | None, done: int = 0) -> TerminalBar:
    """Return a display of a transfer, which is to be told how many bytes each chunk has.

    Args:
        label: what is transferred.
        total: how many bytes there are, `None` if that isn't known.
        done: how many of these were transferred before.
    """

    def line(count: float) -> str:
        of = f" of {megabytes(total)} ({count / total:.0%})" if total else ""
        return f"{label}: {megabytes(count)}{of}"

    columns = (DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    return TerminalBar(label, *columns, total=total, done=done, line=line)


def megabytes(count: float) -> str:
    """Return a number of bytes as it is shown."""
    return f"{count / 1e6:,.1f} MB"
