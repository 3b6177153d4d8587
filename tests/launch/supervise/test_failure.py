"""What is shown of a log says why the process failed, whatever stands below that."""

from __future__ import annotations

import pytest

from src.launch.supervise.failure import _telling

BANNER = [f"=   line {number} of a banner" for number in range(12)]


@pytest.mark.parametrize(
    "reason",
    [
        "srun: error: no allocation",
        "KeyError: 'mine'",
        "mpi: command not found",
        "bash: x: Permission denied",
    ],
)
def test_the_reason_stands_above_a_banner(reason: str) -> None:
    text = "\n".join(["RuntimeError: an earlier one", "", reason, *BANNER])
    assert _telling(text) == [reason, "...", *BANNER[-8:]]


@pytest.mark.parametrize("text", ["", "one line", "\n".join(BANNER), "\n".join([*BANNER, "ValueError: it"])])
def test_otherwise_the_last_lines_are_shown(text: str) -> None:
    assert _telling(text) == text.splitlines()[-8:]


def test_an_error_in_the_last_lines_needs_no_other() -> None:
    lines = ["OSError: first", *BANNER, "ValueError: it"]
    assert _telling("\n".join(lines)) == lines[-8:]
