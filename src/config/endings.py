"""End a command with one line for the person who typed it, and an exit status."""

from __future__ import annotations

import os
import sys
import traceback

FAILURE, MISTAKE, INTERRUPTED = 1, 2, 130
# Set by a user who wants the traceback of an error that the program doesn't expect.
TRACEBACK = "SCALEGUIDE_TRACEBACK"


def complain(text: str, status: int) -> int:
    """Print `text` to standard error, as one line; return the exit `status`."""
    print(" ".join(text.splitlines()), file=sys.stderr)
    return status


def unexpected(error: BaseException) -> int:
    """Print one line on an error that no sentence was written for; return the exit status."""
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)
    text = f"{type(error).__name__}: {error}".rstrip(": ")
    return complain(f"error: unexpected {text}; {TRACEBACK}=1 shows where", FAILURE)
