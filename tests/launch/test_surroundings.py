"""What the shells of users, schedulers and engines say to a command doesn't reach the processes of a run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from src.launch import surroundings
from tests import leaks
from tests.conftest import Commands
from tests.support import ROOT


def test_ranks_inherit_what_is_the_users_and_nothing_of_others(tmp_path: Path) -> None:
    own = {
        "PATH": "/bin",
        "OMPI_MCA_btl": "self",
        "NCCL_DEBUG": "INFO",
        "MPIR_CVAR_CH4_OFI": "1",
        "HYDRA_FULL_ERROR": "1",
    }
    passed = surroundings.inherited({**own, **leaks.everything(tmp_path), "RAY_JOB_ID": "1"})
    # Ranks download weights by the proxies, and gRPC by none.
    kept = {*own, *leaks.PROXIES, "KERAS_HOME", *surroundings.FIXED}
    assert passed.keys() == kept
    assert (passed["grpc_proxy"], passed["KERAS_BACKEND"]) == ("", "tensorflow")


@pytest.mark.slow
def test_keras_is_as_it_comes_whatever_its_file_says(tmp_path: Path) -> None:
    code = """
import src.compat.keras, keras
print(keras.backend.backend(), keras.config.floatx(), keras.config.epsilon(),
      keras.config.image_data_format(), keras.config.dtype_policy().name)
"""
    shell = surroundings.inherited({"PATH": "/bin", "PYTHONPATH": str(ROOT), **leaks.everything(tmp_path)})
    printed = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=shell, capture_output=True, text=True, check=True
    ).stdout
    assert printed.split() == ["tensorflow", "float32", "1e-07", "channels_last", "float32"]


@pytest.mark.slow
def test_other_strategies_start_too_in_a_shell_that_has_it_all(
    module_commands: Callable[[], Commands], mnist: None, tmp_path: Path
) -> None:
    """tests/strategies/test_isolation.py and test_own_models.py do so with the others."""
    commands = module_commands()
    completed = commands.run(
        "strategy=sandblaster_lbfgs,tf_single,tf_model_split,tf_mpi", "-m", "model=mlp", "epochs=1",
        "hardware.device=cpu", "hardware.share_devices=true", "tracking.backend=none", "dataset.limit=640",
        "dataset.test_limit=100", "max_minutes=1", "hardware.grace_minutes=2", **leaks.everything(tmp_path),
    )  # fmt: skip
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert completed.stdout.count("  ok: ") == 4
    assert commands.left() == []
