"""Share code among the scripts that feed images and train nothing: arguments, and the measurement."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
# Images/s are taken once the pipeline has run for so long.
WARMUP_SECONDS = 2.0
CORES = 2


def arguments() -> argparse.Namespace:
    """Read the command line of a feeding script."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["files", "arrays", "prepared"])
    parser.add_argument("--data", required=True, help="folder with images.npy, labels.npy and images/CLASS/")
    parser.add_argument("--side", type=int, required=True)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--plain", help="instead: write the first batch, as it is stored, to this .npy")
    return parser.parse_args()


def finish(args: argparse.Namespace, batches: Iterator[Any], pixels: Callable[[Any], np.ndarray]) -> None:
    """Print the samples/s that `batches` yields as a line of JSON, or write the first batch if asked for.

    Args:
        args: the command line.
        batches: yields batches of images and labels without an end.
        pixels: turns a batch into normalised images [batch, height, width, channels].
    """
    if args.plain:
        np.save(args.plain, pixels(next(batches)))
        return
    start = time.perf_counter()
    while time.perf_counter() - start < WARMUP_SECONDS:
        next(batches)
    count, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < args.seconds:
        next(batches)
        count += 1
    print(json.dumps({"samples_per_second": count * args.batch / elapsed}))
