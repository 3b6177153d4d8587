"""Peak memory of a rank: a GPU's allocator, or a CPU's resident set above its level after imports."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import psutil

_level = 0
LEFT = "memory.json"


def start(device: Any = None) -> None:
    """Marks the level above which memory counts, after imports; `device` is a torch device or `None`."""
    global _level
    if getattr(device, "type", "cpu") == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats(device)
    _level = psutil.Process().memory_info().rss
    # "5" resets the kernel's high-water mark (proc(5), clear_refs).
    Path("/proc/self/clear_refs").write_text("5")


def restart_peak() -> None:
    """The peak is taken from here on, above the level of `start`."""
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()
    Path("/proc/self/clear_refs").write_text("5")


def peak(device: Any = None) -> dict[str, int]:
    """`memory_peak_bytes` since `start`, and `memory_level_bytes`, the resident set at that time."""
    if getattr(device, "type", "cpu") == "cuda":
        import torch

        return {"memory_peak_bytes": torch.cuda.max_memory_allocated(device), "memory_level_bytes": 0}
    return peak_of(os.getpid(), _level)


def leave(folder: Path) -> None:
    """Of a process that has no end of its own: marks the level, and leaves word for `left`."""
    start()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / LEFT).write_text(json.dumps({"pid": os.getpid(), "level": _level}))


def left(folder: Path) -> dict[str, int]:
    """The peak, so far, of the process that left word in `folder`; empty if none did, or it is gone."""
    if not (folder / LEFT).exists():
        return {}
    told = json.loads((folder / LEFT).read_text())
    return peak_of(told["pid"], told["level"])


def peak_of(pid: int, above: int) -> dict[str, int]:
    """The same of another process of this host, whose level was `above`; empty when it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
        high = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return {}
    return {"memory_peak_bytes": max(0, high - above), "memory_level_bytes": above}
