"""Feed a torch rank its micro-batches of every step, in the order of samples that all strategies share."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch

from src.data import order, prefetch
from src.data.batches import training_order, training_samples
from src.data.samples import Samples
from src.measure.recorder import Recorder
from src.runtime.common.batch_split import BatchSplit
from src.runtime.common.context import RankContext
from src.runtime.torch.tensors import (
    Tensors,
    blank_inputs,
    fill_inputs,
    filled_inputs,
    input_tensors,
    target_tensors,
    typed,
)
from src.tasks.torch.task import Task

# Threads that read batches ahead for a GPU, where its rank has so many cores.
THREADS_AHEAD = 2
CPU = torch.device("cpu")


class Batch(NamedTuple):
    """A rank's micro-batch.

    Attributes:
        inputs: the model's inputs [samples, ...], `None` where the rank doesn't read them.
        targets: the targets [samples, ...], `None` where the rank doesn't read them.
        divisor: what the loss of the whole global batch is a mean over: how many samples, or targets.
    """

    inputs: Tensors | None
    targets: Tensors | None
    divisor: float


class Piece(NamedTuple):
    """The samples that a rank reads for a micro-batch.

    Attributes:
        indices: the training samples [piece].
        divisor: as that of `Batch`.
    """

    indices: np.ndarray
    divisor: float


def divisor_of(context: RankContext, task: Task, indices: np.ndarray, epoch: int) -> float:
    """Return what the loss of a global batch is a mean over: the number of its samples, or of its targets.

    Each rank counts the targets of the whole batch: their order is shared, so that nothing is exchanged.

    Args:
        context: the rank's context.
        task: the configured task.
        indices: the training samples of the whole batch [batch].
        epoch: the epoch, from 0, that they are trained on in: an augmentation may change their targets.
    """
    if task.divisor == "samples":
        return float(len(indices))
    samples = training_samples(context.arrays, context.config, indices, epoch, inputs=False)
    count = float(task.count(typed(samples.targets, CPU)))
    # A batch without any target has no loss, and no mean.
    return max(1.0, count)


class Feed:
    """An iterable over a rank's parts of the batches of one epoch, each cut into even pieces.

    It yields a `Batch` for each piece. The feed's `len` counts the pieces.

    Attributes:
        steps: steps in an epoch.
        epoch: the epoch that the next iteration feeds, from 0.
        skip: how many steps of that epoch are left out, since a resumed run has done them.
        split: how batches are split among ranks.
    """

    def __init__(
        self,
        context: RankContext,
        recorder: Recorder,
        device: torch.device,
        task: Task,
        *,
        parts: int,
        split: BatchSplit | None = None,
        inputs: bool = True,
        targets: bool = True,
    ) -> None:
        """Feed the rank of `context` from its first epoch on.

        Args:
            context: the rank's context.
            recorder: the rank's recorder, which measures the time that reading takes.
            device: where the inputs and targets are put.
            task: the configured task, which says what the loss is a mean over.
            parts: number of pieces in a step.
            split: how batches are split among ranks; by default as the configuration says.
            inputs: whether this rank reads inputs; a rank with a later stage of the model doesn't.
            targets: whether this rank reads targets; a rank with an earlier stage of the model doesn't.
        """
        self.context = context
        self.recorder = recorder
        self.device = device
        self.parts = parts
        self.task = task
        self.inputs = inputs
        self.targets = targets
        self.epoch = 0
        self.skip = 0
        self.split = BatchSplit(context.config) if split is None else split
        self.steps = order.steps_per_epoch(context.arrays.train_samples, context.config.global_batch)

    def start_at(self, epoch: int, step: int) -> None:
        """Feed from the place where `epoch` whole epochs and `step` steps of the next one are done."""
        self.epoch, self.skip = epoch, step

    def end_epoch(self) -> None:
        """Feed the next epoch from its beginning when the feed is iterated again."""
        self.epoch, self.skip = self.epoch + 1, 0

    def __len__(self) -> int:
        return (self.steps - self.skip) * self.parts

    def __iter__(self) -> Iterator[Batch]:
        with contextlib.closing(self._batches()) as batches:
            for _ in range(len(self)):
                with self.recorder.waiting_for_input():
                    batch = next(batches)
                yield batch

    def _batches(self) -> Generator[Batch]:
        """Yield the present epoch's batches: on a CPU read by its own cores, for a GPU ahead of it."""
        if self.device.type == "cpu":
            with ThreadPoolExecutor(len(self.context.cores), thread_name_prefix="feed") as pool:
                for piece in self._pieces():
                    yield self._read_on_cores(piece, pool)
            return
        # The parts of coming batches aren't known yet where they follow measured speeds.
        threads = 0 if self.split.automatic else min(THREADS_AHEAD, len(self.context.cores))
        reads = (functools.partial(self._read_for_gpu, piece, self.epoch) for piece in self._pieces())
        with contextlib.closing(prefetch.ahead(reads, threads)) as read:
            for inputs, targets, divisor in read:
                yield Batch(
                    None if inputs is None else input_tensors(self.context, inputs, self.device),
                    None if targets is None else typed(targets, self.device),
                    divisor,
                )

    def _pieces(self) -> Iterator[Piece]:
        """Yield what this rank is to read in the present epoch."""
        config, samples = self.context.config, self.context.arrays.train_samples
        permutation = training_order(config, samples, self.epoch)
        rank = config.degrees.batch_part(self.context.rank)
        for step in range(self.skip, self.steps):
            whole = order.batch_indices(permutation, step, config.global_batch)
            indices = whole[self.split.part(rank)]
            divisor = divisor_of(self.context, self.task, whole, self.epoch)
            for piece in range(self.parts):
                yield Piece(indices[order.even_slice(len(indices), piece, self.parts)], divisor)

    def _read_on_cores(self, piece: Piece, pool: ThreadPoolExecutor) -> Batch:
        """Read, augment and normalise a micro-batch on the CPU, a part on each of its cores."""
        indices, cores = piece.indices, len(self.context.cores)
        inputs = targets = None
        if self.inputs:
            arrays = self.context.arrays.train.inputs
            blank = blank_inputs(arrays, len(indices))

            def read(core: int) -> None:
                part = order.even_slice(len(indices), core, cores)
                samples = self._samples(indices[part], targets=False)
                fill_inputs(self.context, samples.inputs, [tensor[part] for tensor in blank])

            # One core needs no other thread.
            list(map(read, range(cores)) if cores == 1 else pool.map(read, range(cores)))
            inputs = filled_inputs(arrays, blank)
        if self.targets:
            targets = target_tensors(self.task, self._samples(indices, inputs=False).targets, CPU)
        return Batch(inputs, targets, piece.divisor)

    def _read_for_gpu(self, piece: Piece, epoch: int) -> Batch:
        """Read and augment a micro-batch into memory from which a GPU can copy it by itself."""
        arrays, config = self.context.arrays, self.context.config
        samples = training_samples(
            arrays, config, piece.indices, epoch, inputs=self.inputs, targets=self.targets
        )
        all_targets = (*samples.targets, *self.task.derive(samples.targets)) if self.targets else ()
        inputs, targets = (
            tuple(torch.from_numpy(array) for array in arrays) for arrays in (samples.inputs, all_targets)
        )
        if self.device.type == "cuda":
            inputs, targets = (tuple(each.pin_memory() for each in tensors) for tensors in (inputs, targets))
        return Batch(inputs if self.inputs else None, targets if self.targets else None, piece.divisor)

    def _samples(self, indices: np.ndarray, **parts: bool) -> Samples:
        return training_samples(self.context.arrays, self.context.config, indices, self.epoch, **parts)
