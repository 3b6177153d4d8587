"""Hogwild (Recht 2011): workers of one host train the same parameters in shared memory, without a lock.

The paper proves convergence for sparse gradients. A network's gradients are dense, so that every update
conflicts with simultaneous ones. Here a worker copies the parameters as they happen to be, computes the
gradient of its part of a batch, and applies the gradient in place. Momentum, which the paper doesn't have, is
shared in the same way. *Staleness* counts the updates by other workers between a worker's copy and the end of
its own update.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import torch

from src.config import Config
from src.measure.recorder import Recorder
from src.runtime.common.context import RankContext
from src.runtime.torch import setup
from src.runtime.torch.parameter_server.async_processes import coordinate, serve_worker
from src.runtime.torch.parameter_server.ps_worker import SharedMemoryWorker
from src.runtime.torch.parameter_server.shared_memory import SharedMemoryStore


def make_worker(context: RankContext, addresses: Mapping[str, Sequence[str]]) -> SharedMemoryWorker:
    """Make a worker that connects to the coordinator; `addresses` holds those of all processes by job."""
    return SharedMemoryWorker(context, addresses["coordinator"][0])


def serve(config: Config, cores: tuple[int, ...], folder: Path) -> NoReturn:
    """Run a worker, pinned to `cores` and with its records in `folder`, until the parent ends the process."""
    serve_worker(config, cores, folder, make_worker)


def train(context: RankContext, recorder: Recorder) -> None:
    """Run the coordinator, which makes the shared memory that the workers map."""
    # The workers may have GPUs; what they train is the same on a CPU.
    model = setup.build(context)
    reached, _ = setup.reached_parameters(context, model, torch.device("cpu"))
    elements = sum(p.numel() for name, p in model.named_parameters() if name in reached)
    coordinate(context, recorder, SharedMemoryStore.create(context.config, elements))
