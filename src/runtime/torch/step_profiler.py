"""Profile steps by torch.profiler; the trace opens in Perfetto or chrome://tracing."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile


class TorchProfiler:
    """A `Profiler` of this process's operations, and of its GPU's kernels."""

    def __init__(self) -> None:
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(activities=activities, record_shapes=True)
        self._target = Path()

    def start(self, target: Path) -> None:
        """Begin to profile."""
        self._target = target
        self._profile.start()

    def stop(self) -> None:
        """End, and write `<target>.json.gz`."""
        self._profile.stop()
        self._profile.export_chrome_trace(f"{self._target}.json.gz")


make = TorchProfiler
