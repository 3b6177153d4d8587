"""Reach what TensorFlow has no public way to."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from tensorflow.python.eager import context


def set_heartbeat_timeout(seconds: float) -> None:
    """Have the workers of a cluster that this process joins later be given up after so long a silence.

    TensorFlow's own 10 seconds pass on a machine that has other things to do, and end the run. Whoever was
    killed is noticed by the process that has started it.
    """
    eager = context.context()
    eager.configure_coordination_service = partial(
        eager.configure_coordination_service, heartbeat_timeout_in_ms=round(seconds * 1000)
    )


def read_profile(path: Path) -> Any:
    """Return the `XSpace` that TensorFlow's profiler has written to `path` (an `.xplane.pb`).

    It has planes, of the host and of each GPU; these have lines, as threads or streams, with events.
    """
    # Only a run that is profiled needs it.
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    space.ParseFromString(path.read_bytes())
    return space
