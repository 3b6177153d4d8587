"""The trainings of the parity tests, one module after the other, while other tests run.

    python -m tests.trainings FOLDER MODULE...

A module has a function `train_cases(folder)`, which leaves its cases there. They take minutes, of which the
cores are idle for a good part, and nothing in them is a matter of time: they run at the lowest priority,
so that tests that are don't notice. `FOLDER/MODULE.json` says how each ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMIT_SECONDS = 1200.0
LOWEST_PRIORITY = 19
PR_SET_PDEATHSIG = 1


class Trainings:
    """The process that runs them; there is none where nothing is to be trained."""

    def __init__(self, folder: Path, modules: Sequence[str]) -> None:
        self._folder = folder
        self._log = folder / "trainings.log"
        self._process: subprocess.Popen[bytes] | None = None
        if not modules:
            return
        command = [sys.executable, "-m", "tests.trainings", str(folder), *modules]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def of(self, module: str) -> Path:
        """Where a module's cases are, once they are."""
        report = self._folder / f"{module}.json"
        deadline = time.monotonic() + LIMIT_SECONDS
        assert self._process is not None
        while not report.exists() and self._process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert report.exists(), f"no cases of {module}: {self._log.read_text()[-3000:]}"
        error = json.loads(report.read_text())["error"]
        assert error is None, error
        return self._folder / module

    def end(self) -> None:
        """Ends what still runs."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()


@contextlib.contextmanager
def begun(folder: Path, modules: Sequence[str]) -> Iterator[Trainings]:
    """The trainings of these modules, from now on."""
    trainings = Trainings(folder, modules)
    try:
        yield trainings
    finally:
        trainings.end()


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    # So that ranks are ended in order.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    os.nice(LOWEST_PRIORITY)
    folder = Path(sys.argv[1])
    for module in sys.argv[2:]:
        error = None
        own = folder / module
        own.mkdir()
        try:
            importlib.import_module(module).train_cases(own)
        except Exception:
            error = traceback.format_exc()
        whole = folder / f"{module}.part"
        whole.write_text(json.dumps({"error": error}))
        whole.rename(folder / f"{module}.json")


if __name__ == "__main__":
    main()
