"""Feed a torch rank its micro-batches of every step, in the order of samples that all strategies share."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from src.data import order
from src.measure.recorder import Recorder
from src.runtime.common.batch_split import BatchSplit
from src.runtime.common.context import RankContext
from src.tasks.torch.task import Task

Tensors = tuple[Tensor, ...]


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


def input_tensors(context: RankContext, arrays: Sequence[np.ndarray], device: torch.device) -> Tensors:
    """Return a model's inputs on `device`: uint8 images normalised, other arrays as `target_tensors` does."""
    return tuple(
        to_inputs(context, array, device)
        if array.dtype == np.uint8 and array.ndim == 4
        else _in_default_type(array, device)
        for array in arrays
    )


def target_tensors(arrays: Sequence[np.ndarray], device: torch.device) -> Tensors:
    """Return targets on `device`: floating-point numbers in torch's default type, others as they are."""
    return tuple(_in_default_type(array, device) for array in arrays)


def _in_default_type(array: np.ndarray, device: torch.device) -> Tensor:
    tensor = to_device(array, device)
    return tensor.to(torch.get_default_dtype()) if tensor.is_floating_point() else tensor


def divisor_of(context: RankContext, task: Task, indices: np.ndarray) -> float:
    """Return what the loss of a global batch is a mean over: the number of its samples, or of its targets.

    Each rank counts the targets of the whole batch: their order is shared, so that nothing is exchanged.

    Args:
        context: the rank's context.
        task: the configured task.
        indices: the training samples of the whole batch [batch].
    """
    if task.divisor == "samples":
        return float(len(indices))
    targets = target_tensors([array[indices] for array in context.arrays.train.targets], torch.device("cpu"))
    count = float(task.count(targets))
    # A batch without any target has no loss, and no mean.
    return max(1.0, count)


def to_inputs(context: RankContext, images: np.ndarray, device: torch.device) -> Tensor:
    """Normalise uint8 images [batch, height, width, channels]; return [batch, channels, height, width].

    The result is on `device` and has torch's default dtype: fp32, or float64 where a test asks for sharper
    equality.
    """
    mean, scale = _mean_and_scale(
        tuple(context.arrays.mean), tuple(context.arrays.std), device, torch.get_default_dtype()
    )
    return to_device(images, device).permute(0, 3, 1, 2).to(mean.dtype).sub_(mean).mul_(scale)


@functools.cache
def _mean_and_scale(
    mean: tuple[float, ...], std: tuple[float, ...], device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return the mean and the reciprocal deviation of pixels, [1, channels, 1, 1] each, made once.

    To copy them to a GPU would have the host wait for the GPU at every batch.
    """
    shape = (1, len(mean), 1, 1)
    centre, deviation = (
        torch.tensor(values, device=device, dtype=dtype).view(shape) for values in (mean, std)
    )
    return centre * 255, 1 / (deviation * 255)


def to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """Make a tensor of an array on `device`; on a GPU without waiting for what that still does."""
    tensor = torch.from_numpy(array)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


class Feed:
    """An iterable over a rank's parts of the batches of one epoch, each cut into even pieces.

    A piece is a `Batch`. The feed's `len` counts the pieces.

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
        config, arrays = self.context.config, self.context.arrays
        permutation = order.epoch_order(arrays.train_samples, config.seed, self.epoch)
        rank = self.context.rank if config.strategy["supports"]["shares_batch"] else 0
        for step in range(self.skip, self.steps):
            whole = order.batch_indices(permutation, step, config.global_batch)
            indices = whole[self.split.part(rank)]
            with self.recorder.waiting_for_input():
                divisor = divisor_of(self.context, self.task, whole)
            for piece in range(self.parts):
                with self.recorder.waiting_for_input():
                    part = indices[order.even_slice(len(indices), piece, self.parts)]
                    batch = self._read(part, divisor)
                yield batch

    def _read(self, indices: np.ndarray, divisor: float) -> Batch:
        train, inputs, targets = self.context.arrays.train, None, None
        if self.inputs:
            inputs = input_tensors(self.context, [array[indices] for array in train.inputs], self.device)
        if self.targets:
            targets = target_tensors([array[indices] for array in train.targets], self.device)
        return Batch(inputs, targets, divisor)
