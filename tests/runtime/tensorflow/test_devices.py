"""What TensorFlow's processes make of GPUs, where none is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support import ROOT

# Each process as a run on GPUs would have it, and a library that tells of GPUs.
BEGIN = """
import dataclasses
from types import SimpleNamespace
import tensorflow as tf
from src.runtime.tensorflow import setup
from src.strategies.tensorflow import tf_parameter_server
from tests.support import config

def context(strategy, workers, world_size):
    chosen = config(f"strategy={strategy}", f"workers={workers}")
    chosen = dataclasses.replace(chosen, hardware=dataclasses.replace(chosen.hardware, device="gpu"))
    from src.runtime.common.context import RankContext
    return RankContext(chosen, 0, world_size, None, __import__("pathlib").Path("/nowhere"), (0,))
"""
COORDINATOR = """
def join_cluster(context):
    assert context.config.hardware["device"] == "gpu"
    print("configured", tf.config.threading.get_intra_op_parallelism_threads())
    raise SystemExit
tf_parameter_server.join_cluster = join_cluster
tf_parameter_server.train(context("tf_parameter_server", 2, 2), None)
"""
MEMORY = """
peaks = {"GPU:0": {"peak": 7}, "GPU:1": {"peak": 9}, "GPU:2": {"peak": 11}}
tf.config.experimental.get_memory_info = peaks.__getitem__
print(setup.peak_memory(context("tf_mirrored", 2, 1)), setup.peak_memory(context("tf_multiworker", 2, 2)))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "printed"),
    [
        # The coordinator of workers with GPUs sees none itself.
        (COORDINATOR, "configured 1"),
        (
            MEMORY,
            "{'memory_peak_bytes': 9, 'memory_level_bytes': 0} "
            "{'memory_peak_bytes': 7, 'memory_level_bytes': 0}",
        ),
    ],
    ids=["coordinator", "memory"],
)
def test_gpus(code: str, printed: str) -> None:
    completed = subprocess.run(
        [sys.executable, "-c", BEGIN + code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert completed.stdout.strip() == printed, completed.stderr
