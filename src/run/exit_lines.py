"""End a command with one line for the person who typed it, and an exit status."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from src.config.mistakes import CommandError
from src.run.status import Status

# Set by a user who wants the traceback of an error that the program doesn't expect.
TRACEBACK = "SCALEGUIDE_TRACEBACK"


def leave(main: Callable[[], int]) -> NoReturn:
    """Run the `main` function of a command, and end the process with the exit status that it returns."""
    try:
        code = main()
    except KeyboardInterrupt as interrupt:
        code = answer(interrupt)
    finally:
        # What is left to do is short, and must not end in a traceback.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


def run(command: Callable[[], int | None]) -> int:
    """Run a command; return the exit status that it returns, by default 0, or that of an error.

    The error is told in one line.
    """
    try:
        return command() or 0
    except (Exception, KeyboardInterrupt) as error:
        return answer(error)


def answer(error: BaseException) -> int:
    """Print one line on the error that has ended a command; return the exit status."""
    if isinstance(error, KeyboardInterrupt):
        return complain("interrupted", Status.INTERRUPTED.command)
    if isinstance(error, CommandError):
        return complain(f"error: {error}", error.exit_status)
    if isinstance(error, OSError) and error.filename is not None:
        return complain(f"error: {error.filename}: {error.strerror}", CommandError.exit_status)
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)
    text = f"{type(error).__name__}: {error}".rstrip(": ")
    return complain(f"error: unexpected {text}; {TRACEBACK}=1 shows where", CommandError.exit_status)


def complain(text: str, status: int) -> int:
    """Print `text` to standard error, as one line; return the exit `status`."""
    print(" ".join(text.splitlines()), file=sys.stderr)
    return status
