"""Fork servers that all commands and ranks of a test session share: frameworks are imported once."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path
from unittest import mock

from src.launch.warm_start import ForkServerProcess
from src.run.variables import FORK_SERVERS

ROOT = Path(__file__).parents[1]
# Nothing of MPI: mpi4py joins when it is imported.
MODULES = {
    "torch": (
        *(f"src.strategies.torch.{name}" for name in ("single", "ddp", "local_sgd", "pipeline")),
        *(f"src.strategies.torch.{name}" for name in ("model_split", "parameter_server", "hogwild")),
        *("src.strategies.torch.sandblaster_lbfgs", "src.models.torch.resnet", "src.data.readers.idx"),
    ),
    "tensorflow": (
        *(f"src.strategies.tensorflow.tf_{name}" for name in ("single", "mirrored", "custom", "multiworker")),
        *(f"src.strategies.tensorflow.tf_{name}" for name in ("model_split", "parameter_server")),
        *("src.models.tensorflow.cnn", "src.models.tensorflow.resnet", "src.data.readers.idx"),
    ),
}


def start_fork_server(framework: str) -> None:
    """Start the framework's server, unless it runs; it ends with this process."""
    if FORK_SERVERS not in os.environ:
        os.environ[FORK_SERVERS] = tempfile.mkdtemp(prefix="scaleguide-tests-")
        atexit.register(shutil.rmtree, os.environ[FORK_SERVERS], ignore_errors=True)
    address = Path(os.environ[FORK_SERVERS], framework)
    if not address.exists():
        with mock.patch.dict(os.environ, PYTHONPATH=str(ROOT)):
            atexit.register(ForkServerProcess(MODULES[framework], address).close)
