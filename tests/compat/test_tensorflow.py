"""A worker that is silent for a while isn't given up before a collective is."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

from tests.support import ROOT

# Joins a cluster of its own as a rank does, and prints what TensorFlow was told.
CODE = """
from types import SimpleNamespace
from tensorflow.python.eager import context
from src.runtime.tensorflow.distribution import join_cluster

options = {"communication": "ring", "timeout_seconds": 30}
join_cluster(SimpleNamespace(config=SimpleNamespace(strategy=options)))
print("timeout", context.context().coordination_service.heartbeat_timeout_in_ms)
"""


def test_the_heartbeat_waits_longer_than_a_collective() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    cluster = {"cluster": {"worker": [f"127.0.0.1:{port}"]}, "task": {"type": "worker", "index": 0}}
    shell = {**os.environ, "TF_CONFIG": json.dumps(cluster), "CUDA_VISIBLE_DEVICES": "-1"}
    done = subprocess.run([sys.executable, "-c", CODE], cwd=ROOT, env=shell, capture_output=True, text=True)
    assert "timeout 60000" in done.stdout, done.stderr
