"""Fork servers that a test session's commands and ranks share: what they import is imported once."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from unittest import mock

from src.launch.local.agents import send_line
from src.launch.local.warm_start import ForkedProcess, ForkServerProcess
from src.run.variables import FORK_SERVERS

ROOT = Path(__file__).parents[1]
# Nothing of MPI: mpi4py joins when it is imported.
MODULES = {
    "command": ("src.train",),
    "torch": (
        *(f"src.strategies.torch.{name}" for name in ("single", "ddp", "local_sgd", "pipeline")),
        *(f"src.strategies.torch.{name}" for name in ("model_split", "parameter_server", "hogwild")),
        "src.strategies.torch.sandblaster_lbfgs",
        *(f"src.strategies.torch.{name}" for name in ("fsdp", "hybrid", "tensor_parallel")),
        # What `src.partition.torch.export.load` has torch import.
        "torch.export._trace",
        "src.models.torch.resnet",
        "src.data.readers.idx",
    ),
    "tensorflow": (
        *(f"src.strategies.tensorflow.tf_{name}" for name in ("single", "mirrored", "custom", "multiworker")),
        *(f"src.strategies.tensorflow.tf_{name}" for name in ("model_split", "parameter_server")),
        "src.models.tensorflow.cnn",
        "src.models.tensorflow.resnet",
        "src.data.readers.idx",
    ),
}


class ForkedCommand:
    """A command that was forked, as `subprocess.Popen` has one."""

    def __init__(
        self, words: Sequence[str], folder: Path, environment: Mapping[str, str], out: Path, err: Path
    ):
        self.args = [sys.executable, "-m", "src.train", *words]
        request = {
            "command": [sys.executable, "-m", "tests.forked_command", str(out), str(err), *words],
            "environment": dict(environment),
            "log": os.devnull,
            "folder": str(folder),
            "nice": os.nice(0),
            "cores": sorted(os.sched_getaffinity(0)),
        }
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(start_fork_server("command")))
            stream = connection.makefile("rwb")
        send_line(stream, request)
        self._process = ForkedProcess(stream, self.args)
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    def poll(self) -> int | None:
        return self._process.poll()

    def wait(self, timeout: float | None = None) -> int:
        return self._process.wait(timeout)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start_fork_server(framework: str) -> Path:
    """Start the server of a framework, or of commands, unless it runs; it ends with this process.

    Returns its address.
    """
    if FORK_SERVERS not in os.environ:
        os.environ[FORK_SERVERS] = tempfile.mkdtemp(prefix="scaleguide-tests-")
        atexit.register(shutil.rmtree, os.environ[FORK_SERVERS], ignore_errors=True)
    address = Path(os.environ[FORK_SERVERS], framework)
    if not address.exists():
        with mock.patch.dict(os.environ, PYTHONPATH=str(ROOT)):
            atexit.register(ForkServerProcess(MODULES[framework], address).close)
    return address
