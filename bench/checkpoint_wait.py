"""Measure how long a step waits for a checkpoint, beside training or not: `python -m bench.checkpoint_wait`.

A model trains on one core and saves a checkpoint at each step. Rounds take turns: in one the training waits
until each checkpoint is written, in the other until its state is copied and the one before is written.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch

from src.config import command_line, compose
from src.machine import process
from src.machine.devices import usable_cores
from src.models import adapt
from src.runtime.common.checkpoint_writer import CheckpointWriter
from src.runtime.common.context import RankContext
from src.runtime.torch import checkpoint

STEPS = 8
SHAPE = (32, 32, 3)
KINDS = {"waits until it is written": False, "beside training": True}


def main() -> int:
    """Print the median wait of a step and seconds of a step with its checkpoint, for both kinds of rounds."""
    parser = argparse.ArgumentParser(prog="python -m bench.checkpoint_wait", description=__doc__)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    process.pin(usable_cores()[:1])
    torch.set_num_threads(1)
    words = [f"model={args.model}", f"batch={args.batch}", "hardware.device=cpu"]
    (config,) = compose.cells(command_line.parse(words))
    model = adapt.build(config, classes=10, shape=SHAPE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(args.batch, SHAPE[2], *SHAPE[:2])
    arrays: Any = SimpleNamespace(train_samples=args.batch * STEPS)

    def train_step() -> None:
        optimizer.zero_grad()
        model(images).logsumexp(1).mean().backward()
        optimizer.step()

    waits: dict[str, list[float]] = {kind: [] for kind in KINDS}
    rounds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory(dir=".") as folder:
        context = RankContext(config, 0, 1, arrays, Path(folder), ())
        for _ in range(1 + args.rounds):
            for kind, beside in KINDS.items():
                writer = CheckpointWriter(context)
                begun = time.perf_counter()
                for step in range(STEPS):
                    train_step()
                    asked = time.perf_counter()
                    writer.wait()
                    state = checkpoint.rank_state(model, optimizer)
                    checkpoint.write(writer, context, [state], epoch=0, step=step)
                    if not beside:
                        writer.wait()
                    waits[kind].append(time.perf_counter() - asked)
                writer.wait()
                rounds[kind].append(time.perf_counter() - begun)
        size = (Path(folder) / "checkpoint.pt").stat().st_size
    print(f"{args.model}, batch {args.batch}, {size / 1e6:.0f} MB a checkpoint, {args.rounds} rounds in turn")
    for kind in KINDS:
        # The first round warms up.
        wait, whole = median(waits[kind][STEPS:]), median(rounds[kind][1:]) / STEPS
        print(f"{kind}: a step waits {1000 * wait:.0f} ms, and takes {1000 * whole:.0f} ms with all of it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
