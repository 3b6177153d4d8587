"""Ctrl-C while a command starts ends it with one line, at whatever moment it comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import ROOT

pytestmark = pytest.mark.slow

WORDS = ("model=mlp", "epochs=1000", "tracking.backend=none", "hardware.device=cpu", "out=run")
# Seconds after the program's first lines have run; the interpreter's own start answers for itself.
MOMENTS = (0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9, 1.2, 1.5, 2.0)
LIMIT = 60


@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_is_one_line(moment: float, tmp_path: Path, mnist: None) -> None:
    here = tmp_path / "here"
    here.mkdir()
    errors = tmp_path / "stderr"
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            # Each import is told of as it ends.
            [sys.executable, "-X", "importtime", "-m", "src.train", *WORDS],
            cwd=here,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
    try:
        deadline = time.monotonic() + LIMIT
        while not has_begun(errors.read_text()):
            assert process.poll() is None and time.monotonic() < deadline, errors.read_text()
            time.sleep(0.005)
        time.sleep(moment)
        process.send_signal(signal.SIGINT)
        code = process.wait(LIMIT)
    finally:
        process.kill()
        process.wait()
    lines = [line for line in errors.read_text().splitlines() if not line.startswith("import time:")]
    assert code == 130, lines
    # Once there is a folder, a line says so.
    assert 1 <= len(lines) <= 2 and all(line.startswith("interrupted") for line in lines), lines
    assert (len(lines) == 2) == (here / "run").exists()


def has_begun(errors: str) -> bool:
    """Say whether the program has set its handler: it has imported a module after `signal`.

    That the package `src` was imported isn't enough: on a slow machine, compiling the program comes after it
    and takes longer than the first moments of `MOMENTS`.
    """
    modules = [line.rsplit("|", 1)[-1].strip() for line in errors.splitlines() if line.count("|") == 2]
    return "src" in modules and "signal" in modules[modules.index("src") :][:-1]
