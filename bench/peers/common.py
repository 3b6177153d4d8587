"""Share code among the peer scripts: arguments, training arrays, the clock and its report."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np


def arguments() -> argparse.Namespace:
    """Read the command line of a peer script."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True, help="folder with prepared arrays")
    parser.add_argument("--raw", help="folder with the raw idx files")
    parser.add_argument("--model", choices=["cnn", "resnet18", "llama"], required=True)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--started", type=float, default=time.time())
    return parser.parse_args()


def training_arrays(folder: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a folder's normalised float images [samples, channels, height, width], and labels [samples]."""
    images = _array(folder, "train-inputs-0").transpose(0, 3, 1, 2)
    return (images.astype(np.float32) / 255 - 0.1307) / 0.3081, _array(folder, "train-targets-0")


def _array(folder: str, name: str) -> np.ndarray:
    """Load an array of which a prepared folder has one file or several."""
    return np.concatenate([np.load(path) for path in sorted(Path(folder).glob(f"{name}-*.npy"))])


class Clock:
    """Times the steps of a training, and reports the samples/s over those after the warm-up."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.durations: list[float] = []
        self.startup = 0.0
        self.last = 0.0

    def begin(self) -> None:
        """Start timing, as the first step begins."""
        self.startup = time.time() - self.args.started
        self.last = time.perf_counter()

    def step(self) -> bool:
        """Count a completed step; return whether it was the last one."""
        now = time.perf_counter()
        self.durations.append(now - self.last)
        self.last = now
        return len(self.durations) >= self.args.steps

    def report(self, write: Callable[[str], None] = print) -> None:
        """Write samples/s and start-up seconds as one line of JSON."""
        timed = self.durations[self.args.warmup :]
        rate = len(timed) * self.args.batch / sum(timed)
        write(json.dumps({"samples_per_second": rate, "startup_seconds": self.startup}))
