"""A command ends in its exit status and without a traceback, whenever a signal comes."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.support import ROOT

# Signals that come while the interpreter ends; exit handlers are called in the reverse order.
LATE = """
import atexit, os, runpy, sys
for number in ({numbers}):
    atexit.register(os.kill, os.getpid(), number)
module, *sys.argv[1:] = sys.argv[1:]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    ("words", "code"),
    [(["src.train", "--cfg", "job"], 0), (["src.aggregate", "--help"], 0), (["src.train", "btach=1"], 2)],
    ids=["job", "help", "mistake"],
)
def test_a_signal_in_the_last_moment_changes_nothing(words: list[str], code: int) -> None:
    script = LATE.format(numbers=f"{signal.SIGTERM:d}, {signal.SIGINT:d}")
    ended = subprocess.run(
        [sys.executable, "-c", script, *words], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == code
    assert "Traceback" not in ended.stderr
