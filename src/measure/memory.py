"""Measure the peak memory of a rank.

On a GPU it is that of torch's allocator, on a CPU that of the process's resident set, above a level marked
after imports. A rank that has a torch device has imported torch; TensorFlow's don't depend on it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, TypedDict

import psutil

from src.run import files
from src.run.tables import write_text

# Bytes of the resident set when the level was marked.
_level = 0


class PeakMemory(TypedDict, total=False):
    """A peak in bytes above the marked level, and that level; empty where the process is gone."""

    memory_peak_bytes: int
    memory_level_bytes: int


def mark_level(device: Any = None) -> None:
    """Mark the level above which memory counts, after imports; `device` is a torch device or `None`."""
    global _level
    if getattr(device, "type", "cpu") == "cuda":
        _forget_gpu_peak()
    _level = psutil.Process().memory_info().rss
    _reset_high_water_mark()


def restart_peak() -> None:
    """Forget the peak so far; the marked level stays."""
    _forget_gpu_peak()
    _reset_high_water_mark()


def _forget_gpu_peak() -> None:
    """Forget the peak of torch's allocator, which has none and can't forget it until CUDA is initialized."""
    if (torch := sys.modules.get("torch")) and torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()


def _reset_high_water_mark() -> None:
    # proc(5), clear_refs: "5" resets the kernel's peak of the resident set.
    Path("/proc/self/clear_refs").write_text("5")


def peak(device: Any = None) -> PeakMemory:
    """Return the peak since the level was marked, of a GPU (a torch device) or else of this process."""
    if getattr(device, "type", "cpu") == "cuda":
        allocated = sys.modules["torch"].cuda.max_memory_allocated(device)
        return {"memory_peak_bytes": allocated, "memory_level_bytes": 0}
    return peak_of_process(os.getpid(), _level)


def publish_level(folder: Path) -> None:
    """Mark the level of a serving process, and write it to `folder` for the process that reads its peak."""
    mark_level()
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / files.MEMORY, json.dumps({"pid": os.getpid(), "level": _level}))


def peak_published(folder: Path) -> PeakMemory:
    """Return the peak so far of the process that wrote its level to `folder`; empty if none did."""
    path = folder / files.MEMORY
    if not path.exists():
        return {}
    published = json.loads(path.read_text())
    return peak_of_process(published["pid"], published["level"])


def peak_of_process(pid: int, level: int) -> PeakMemory:
    """Return the peak of a process of this host above `level` bytes; empty when it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
        high = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return {}
    return {"memory_peak_bytes": max(0, high - level), "memory_level_bytes": level}
