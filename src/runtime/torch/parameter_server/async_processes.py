"""Run the processes of an asynchronous training: workers, and the coordinator that schedules steps."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from src.config import Config
from src.data import prepared
from src.machine import quota
from src.measure import memory
from src.measure.rank_record import RankRecord
from src.measure.recorder import Recorder
from src.run import files, variables
from src.run.variables import ClusterSpec
from src.runtime.common.checkpoint_writer import CheckpointWriter
from src.runtime.common.context import RankContext
from src.runtime.common.resume import resume_recorders
from src.runtime.torch import checkpoint, setup
from src.runtime.torch.parameter_server.coordinator import TorchCoordinator
from src.runtime.torch.parameter_server.pushes import pushed_bytes
from src.runtime.torch.parameter_server.replica import Replica
from src.runtime.torch.parameter_server.store import ParameterStore


class AsyncWorker(Protocol):
    """A worker that does the work items which the coordinator schedules."""

    def work(self, ready: Callable[[], object]) -> None:
        """Work until the coordinator closes; call `ready` once it and the servers know of this worker."""


def serve_worker(
    config: Config,
    cores: tuple[int, ...],
    folder: Path,
    make: Callable[[RankContext, Mapping[str, Sequence[str]]], AsyncWorker],
) -> NoReturn:
    """Run a worker's process until the parent ends it.

    Args:
        config: the run's configuration.
        cores: the cores that this process is pinned to.
        folder: the folder of this worker's records.
        make: makes the worker, from its context and the addresses of all processes by job.
    """
    torch.set_num_threads(len(cores))
    arrays = prepared.load(config.dataset)
    out = folder.parent.parent
    context = RankContext(config, variables.rank(), config.workers, arrays, out, cores)
    memory.publish_level(folder)
    worker = make(context, ClusterSpec.from_environment().addresses)
    quota.apply()
    with contextlib.suppress(ConnectionError):
        worker.work((folder / files.READY).touch)
    wait_for_the_parent()


def wait_for_the_parent() -> NoReturn:
    """Wait until the parent ends this process, which knows best why the other processes have gone."""
    threading.Event().wait()
    raise AssertionError("nobody sets that event")


def coordinate(
    context: RankContext,
    recorder: Recorder,
    store: ParameterStore,
    *,
    fetches: float = 1,
    pushes: float = 1,
    fixed: bool = False,
    make: Callable[..., TorchCoordinator] = TorchCoordinator,
) -> None:
    """Train by the workers that connect to the coordinator's address, and keep the records of all workers.

    Args:
        context: the coordinator's context.
        recorder: worker 0's recorder.
        store: where the parameters stand; initialized here with the seeded model's parameters, or those of
            the checkpoint.
        fetches: how often a step fetches all parameters, on average.
        pushes: how often a step pushes a gradient of all parameters, on average.
        fixed: whether rank r trains on part r of each batch, as long as that worker isn't lost.
        make: makes the coordinator.

    Raises:
        ConfigError: when the run can't go on from the configured checkpoint.
    """
    gpus = context.config.hardware.device == "gpu"
    # GPUs are for the workers alone.
    config = replace(context.config, hardware=replace(context.config.hardware, device="cpu"))
    context = replace(context, config=config)
    setup.prepare_process(context)
    recorders = [recorder, *(recorder.for_rank(rank) for rank in range(1, config.workers))]
    replica = Replica(context)
    first, entries = _resume(context, recorders, replica)
    store.initialize(replica.parameters(), entries)

    def write(
        writer: CheckpointWriter,
        buffers: tuple[np.ndarray, ...],
        epoch: int,
        step: int,
        worker_steps: list[int],
    ) -> None:
        writer.wait()
        values, entries, _ = store.state()
        replica.load(values)
        replica.load_buffers(buffers)
        state = checkpoint.rank_state_of_vector(replica.model, replica.names, entries)
        checkpoint.write(writer, context, [state], epoch=epoch, step=step, worker_steps=worker_steps)

    parameters = replica.parameters()
    pushed = pushed_bytes(context.config, len(parameters), parameters.element_size())
    coordinator = make(
        context,
        recorders,
        ClusterSpec.from_environment().addresses["coordinator"][0],
        store,
        step_bytes=(parameters.nbytes * fetches, pushed * pushes),
        buffers=tuple(replica.buffers()),
        fixed=fixed,
        write=write,
    )
    status = coordinator.train(first)
    # The coordinator's own device is no worker's: workers may have GPUs.
    peak = cast(RankRecord, coordinator.peak())
    coordinator.close()
    values, _, store_facts = store.state()
    store.close()
    replica.load(values)
    recorder.facts |= setup.facts(context, replica.model, setup.root_device(context)) | store_facts | peak
    for worker_recorder in recorders:
        # The peak of a GPU's allocator is known in the worker's own process only.
        worker_recorder.facts |= {} if gpus else memory.peak_published(worker_recorder.folder)
        worker_recorder.finish(status)


def _resume(
    context: RankContext, recorders: list[Recorder], replica: Replica
) -> tuple[int, dict[str, Tensor]]:
    """Restore the configured checkpoint, if there is one, into the replica and the recorders.

    Returns how many steps the checkpoint has done, or 0, and the optimizer's entries by name.
    """
    if context.config.resume is None:
        return 0, {}
    samples = context.arrays.train_samples
    resumed = checkpoint.read(context.config, samples)
    entries = checkpoint.restore_vector(resumed, replica.model, replica.names)
    return resume_recorders(recorders, resumed, samples // context.config.global_batch), entries
