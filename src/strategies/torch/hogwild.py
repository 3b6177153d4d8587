"""Hogwild (Recht 2011): workers of one host train the same parameters in shared memory, without a lock.

The paper proves it for sparse gradients; a network's are dense, and every update meets the others'. Here a
worker copies the parameters as they happen to be, computes the gradient of its share of a batch, and applies
it in place; momentum, which the paper has not, is shared in the same way. *Staleness* counts the updates by
others between a worker's copy and the end of its own update.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from src.config import Config
from src.measure.recorder import Recorder
from src.runtime.torch import basics, coordination
from src.runtime.torch.shared_values import SharedValues
from src.runtime.torch.turn_worker import SharingWorker
from src.worker import Run


def worker(run: Run, cluster: Mapping[str, Sequence[str]]) -> SharingWorker:
    """One worker, by the addresses of the others."""
    return SharingWorker(run, cluster["coordinator"][0])


def serve(config: Config, cores: tuple[int, ...], folder: Path) -> NoReturn:
    """A worker; whoever started it ends it."""
    coordination.serve_worker(config, cores, folder, worker)


def train(run: Run, recorder: Recorder) -> None:
    """The coordinator, whose memory the workers map."""
    elements = sum(parameter.numel() for parameter in basics.build(run).parameters())
    coordination.coordinate(run, recorder, SharedValues(run.config, elements))
