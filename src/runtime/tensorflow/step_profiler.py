"""Profile steps by TensorFlow's profiler; the trace opens in TensorBoard, and a copy of it in Perfetto."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from src.runtime.tensorflow import chrome_trace


class TensorFlowProfiler:
    """A `Profiler` of this process's operations, and of its devices."""

    def __init__(self) -> None:
        self._target = Path()

    def start(self, target: Path) -> None:
        """Begin to profile; the trace is written below the folder `target`."""
        self._target = target
        tf.profiler.experimental.start(str(target))

    def stop(self) -> None:
        """End, and write the trace, and a copy as `<target>.json.gz`."""
        tf.profiler.experimental.stop()
        try:
            chrome_trace.write(self._target)
        except Exception as error:
            # What the profiler has written is there for TensorBoard, and the run goes on.
            print(f"the profile can't be copied into a Chrome trace: {error!r}", flush=True)


make = TensorFlowProfiler
