"""Run `python -m src.train WORDS` in a process that has been forked from one which had imported it.

    python -m tests.forked_command OUT ERR WORDS...

Both streams are appended to the files OUT and ERR. The process ends as an interpreter does.
"""

from __future__ import annotations

import atexit
import os
import runpy
import sys
import threading


def main() -> None:
    out, err, *words = sys.argv[1:]
    for number, path in ((1, out), (2, err)):
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        os.dup2(file, number)
        os.close(file)
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    # As they were typed: a run's page in MLflow shows that.
    sys.argv[1:] = words
    sys.orig_argv[:] = [sys.executable, "-m", "src.train", *words]
    # A module that is there already is run again, with a warning.
    del sys.modules["src.train"]
    try:
        runpy.run_module("src.train", run_name="__main__", alter_sys=True)
    finally:
        threading._shutdown()
        atexit._run_exitfuncs()


if __name__ == "__main__":
    main()
