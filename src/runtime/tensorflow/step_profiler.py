"""Profile steps by TensorFlow's profiler; the trace opens in TensorBoard or Perfetto."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf


class TensorFlowProfiler:
    """A `Profiler` of this process's operations, and of its devices."""

    def start(self, target: Path) -> None:
        """Begin to profile; the trace is written below the folder `target`."""
        tf.profiler.experimental.start(str(target))

    def stop(self) -> None:
        """End, and write the trace."""
        tf.profiler.experimental.stop()


make = TensorFlowProfiler
