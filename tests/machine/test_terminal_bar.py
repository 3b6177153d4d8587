"""How far something has come is a bar on a terminal, and elsewhere a line now and then."""

from __future__ import annotations

import contextlib
import time

import pytest
from rich.progress import MofNCompleteColumn

from src.machine import terminal_bar
from src.machine.terminal_bar import TerminalBar
from tests.support import Terminal


def samples() -> TerminalBar:
    return TerminalBar(
        "reading", MofNCompleteColumn(), total=100, done=10, line=lambda done: f"{done} samples read"
    )


def test_without_a_terminal_a_line_is_printed_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with samples() as bar:
        for _ in range(25):
            now += 1
            bar.advance(2)
    assert terminal_bar.LINE_SECONDS == 10
    assert capsys.readouterr().err.splitlines() == ["30 samples read", "50 samples read"]


def test_on_a_terminal_it_is_a_bar_that_goes_when_all_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    with contextlib.redirect_stderr(terminal), samples() as bar:
        bar.advance(45)
    shown = terminal.getvalue()
    assert "reading" in shown and "55/100" in shown
    assert "samples read" not in shown
    # The last thing that is written erases the bar's line.
    assert shown.rstrip().endswith("\x1b[2K")
