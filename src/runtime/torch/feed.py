"""Feed a torch rank its micro-batches of every step, in the order of samples that all strategies share."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from src.data import order
from src.measure.recorder import Recorder
from src.runtime.common.batch_split import BatchSplit
from src.runtime.common.context import RankContext

Batch = tuple[Tensor | None, Tensor | None]


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

    A piece is normalised images [piece, channels, height, width] and labels [piece], or `None` for either
    where the rank doesn't read it. The feed's `len` counts the pieces.

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
        *,
        parts: int,
        split: BatchSplit | None = None,
        images: bool = True,
        labels: bool = True,
    ) -> None:
        """Feed the rank of `context` from its first epoch on.

        Args:
            context: the rank's context.
            recorder: the rank's recorder, which measures the time that reading takes.
            device: where the images and labels are put.
            parts: number of pieces in a step.
            split: how batches are split among ranks; by default as the configuration says.
            images: whether this rank reads images; a rank with a later stage of the model doesn't.
            labels: whether this rank reads labels; a rank with an earlier stage of the model doesn't.
        """
        self.context = context
        self.recorder = recorder
        self.device = device
        self.parts = parts
        self.images = images
        self.labels = labels
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
            indices = order.batch_indices(permutation, step, config.global_batch)[self.split.part(rank)]
            for piece in range(self.parts):
                with self.recorder.waiting_for_input():
                    part = indices[order.even_slice(len(indices), piece, self.parts)]
                    batch = self._read(part)
                yield batch

    def _read(self, indices: np.ndarray) -> Batch:
        train = self.context.arrays.train
        images = to_inputs(self.context, train.inputs[0][indices], self.device) if self.images else None
        labels = to_device(train.targets[0][indices], self.device) if self.labels else None
        return images, labels
