"""A coordinator and workers that take turns, whatever the parameters stand on (see `Store`)."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, Protocol

import numpy as np
import torch
from torch import Tensor

from src.config import Config
from src.data import arrays
from src.launch import cluster, quota
from src.launch.place import CAME
from src.measure import memory
from src.measure.recorder import Recorder
from src.runtime.torch import basics, checkpoint
from src.runtime.torch.replica import Replica
from src.runtime.torch.tickets import Tickets
from src.worker import Run


class Store(Protocol):
    """Where the parameters of a training stand, as its coordinator sees it."""

    # What a worker that says that it is there is told.
    welcome: Mapping[str, Any]

    def begin(self, values: Tensor, entries: Mapping[str, Tensor]) -> None:
        """Takes the first values [elements], and the optimizer's entries for them."""

    def taken(self) -> list[tuple[int, int]]:
        """(ticket, staleness) of the steps that have taken effect since this was last asked, as far as
        their worker doesn't tell it."""

    def rest(self, ranks: Sequence[int]) -> None:
        """There is nothing left for these workers to do until the next drain."""

    def drain(self) -> None:
        """All pushes take effect."""

    def state(self) -> tuple[Tensor, dict[str, Tensor], Mapping[str, Any]]:
        """Values, the optimizer's entries, and facts for the record."""

    def end(self) -> None:
        """Nothing will be asked any more."""


class TakesTurns(Protocol):
    """A worker."""

    def work(self, came: Callable[[], object]) -> None:
        """Returns once the coordinator lets it go; calls `came` once the others know of it."""


def serve_worker(
    config: Config,
    cores: tuple[int, ...],
    folder: Path,
    make: Callable[[Run, Mapping[str, Sequence[str]]], TakesTurns],
) -> NoReturn:
    """A worker's process, made by the run and the others' addresses; whoever started it ends it."""
    torch.set_num_threads(len(cores))
    data = arrays.of(config.dataset)
    run = Run(config, int(os.environ["RANK"]), config.workers, data, folder.parent.parent, cores)
    memory.leave(folder)
    worker = make(run, cluster.known()[0])
    quota.begin()
    with contextlib.suppress(ConnectionError):
        worker.work((folder / CAME).touch)
    stay()


def stay() -> NoReturn:
    """Whoever started this process ends it, and knows best why the others have gone."""
    threading.Event().wait()
    raise AssertionError("nobody sets that event")


def coordinate(
    run: Run,
    recorder: Recorder,
    store: Store,
    *,
    fetches: float = 1,
    pushes: float = 1,
    fixed: bool = False,
    make: Callable[..., Tickets] = Tickets,
) -> None:
    """Gives the seeded model, or the resumed one, to `store`, and shares of batches to the workers that
    connect to the coordinator's address; evaluates by them and records for all.

    `fixed`: rank r has share r of each batch, unless it is lost. A step has so many `fetches` and
    `pushes` of all parameters.
    """
    gpus = run.config.hardware["device"] == "gpu"
    # Those are the workers' alone.
    config = replace(run.config, hardware={**run.config.hardware, "device": "cpu"})
    run = replace(run, config=config)
    basics.begin(run)
    recorders = [recorder, *(recorder.for_rank(rank) for rank in range(1, config.workers))]
    replica = Replica(run)
    first, entries = _resume(run, recorders, replica)
    store.begin(replica.parameters(), entries)

    def write(buffers: tuple[np.ndarray, ...], epoch: int, step: int, worker_steps: list[int]) -> None:
        values, found, _ = store.state()
        replica.load(values)
        replica.load_buffers(buffers)
        share = checkpoint.collect_flat(replica.model, found)
        path = run.folder / checkpoint.FILE
        samples = run.arrays.train_samples
        checkpoint.write(path, [share], config, samples, epoch=epoch, step=step, worker_steps=worker_steps)

    size = replica.parameters().nbytes
    tickets = make(
        *(run, recorders, cluster.known()[0]["coordinator"][0], store),
        moved=(size * fetches, size * pushes),
        buffers=tuple(replica.buffers()),
        fixed=fixed,
        write=write,
    )
    status = tickets.train(first)
    tickets.end()
    values, _, facts = store.state()
    store.end()
    replica.load(values)
    recorder.facts |= basics.facts(run, replica.model, basics.root_device(run)) | facts
    for each in recorders:
        # A GPU's allocator can't be asked from here.
        each.facts |= {} if gpus else memory.left(each.folder)
        each.finish(status)


def _resume(run: Run, recorders: list[Recorder], replica: Replica) -> tuple[int, dict[str, Tensor]]:
    """Restores the configured checkpoint into the replica: steps that had been done (0 without one), and
    the optimizer's entries."""
    if run.config.resume is None:
        return 0, {}
    samples = run.arrays.train_samples
    found = checkpoint.read(run.config, samples)
    entries = checkpoint.restore_flat(found, replica.model)
    per_epoch = samples // run.config.global_batch
    step = found["epoch"] * per_epoch + found["step"]
    own = found.get("worker_steps", [])
    # Of another strategy, or of other workers: each has done as many on average.
    own = own if len(own) == len(recorders) else [step] * len(recorders)
    for recorder, done in zip(recorders, own, strict=True):
        recorder.resume_at(int(done), batches=step, per_epoch=per_epoch)
    return step, entries
