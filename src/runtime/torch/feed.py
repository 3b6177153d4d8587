"""Feed a torch rank its micro-batches of every step, in the order of samples that all strategies share."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from src.data import order, prefetch
from src.data.batches import training_order, training_samples
from src.data.samples import Samples
from src.measure.recorder import Recorder
from src.runtime.common.batch_split import BatchSplit
from src.runtime.common.context import RankContext

Batch = tuple[Tensor | None, Tensor | None]
# Values that are normalised at once on a CPU: as many as its caches hold, or, where torch would share the
# work out to several threads, so few that it doesn't. Those would wait for each other at every piece.
CACHED = 1 << 17
SERIAL = (1 << 15) - 1
# Threads that read batches ahead for a GPU, where its rank has so many cores.
THREADS_AHEAD = 2


def to_inputs(context: RankContext, images: np.ndarray, device: torch.device) -> Tensor:
    """Normalise uint8 images [batch, height, width, channels]; return [batch, channels, height, width].

    The result is on `device` and has torch's default dtype: fp32, or float64 where a test asks for sharper
    equality.
    """
    return normalise(context, to_device(images, device))


def normalise(context: RankContext, images: Tensor, result: Tensor | None = None) -> Tensor:
    """Normalise uint8 images [batch, height, width, channels]; return [batch, channels, height, width].

    A pixel x becomes x * scale + offset. On a CPU the calling thread does it alone, piece by piece, so that
    what was converted is still in the cache when it is scaled.

    Args:
        context: the rank's context.
        images: the images.
        result: where the result is written, [batch, height, width, channels]; by default a new tensor.
    """
    batch, height, width, channels = images.shape
    kind = torch.get_default_dtype()
    scale, offset = _scale_and_offset(
        tuple(context.arrays.mean), tuple(context.arrays.std), width, images.device, kind
    )
    if result is None:
        result = torch.empty(images.shape, dtype=kind, device=images.device)
    # Whole rows: an operation whose innermost loop is over three channels takes ten times as long.
    shape = (batch * height, width * channels)
    size = CACHED if torch.get_num_threads() == 1 else SERIAL
    rows = max(1, shape[0] if images.device.type != "cpu" else size // shape[1])
    pieces = (tensor.reshape(shape).split(rows) for tensor in (images, result))
    for source, piece in zip(*pieces, strict=True):
        piece.copy_(source)
        torch.addcmul(offset, piece, scale, out=piece)
    return result.permute(0, 3, 1, 2)


@functools.cache
def _scale_and_offset(
    mean: tuple[float, ...], std: tuple[float, ...], width: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return the factor and the summand of each value in a row of pixels, [width * channels] each, made once.

    To copy them to a GPU would have the host wait for the GPU at every batch.
    """
    centre, deviation = (torch.tensor(values, device=device, dtype=dtype) for values in (mean, std))
    return (1 / (deviation * 255)).repeat(width), (-centre / deviation).repeat(width)


def to_device(array: np.ndarray | Tensor, device: torch.device) -> Tensor:
    """Make a tensor of an array on `device`; on a GPU without waiting for what that still does."""
    tensor = torch.as_tensor(array)
    if device.type == "cuda" and not tensor.is_pinned():
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
        with contextlib.closing(self._batches()) as batches:
            for _ in range(len(self)):
                with self.recorder.waiting_for_input():
                    batch = next(batches)
                yield batch

    def _batches(self) -> Generator[Batch]:
        """Yield the pieces of the present epoch: on a CPU by its own cores, for a GPU ahead of it."""
        if self.device.type == "cpu":
            with ThreadPoolExecutor(len(self.context.cores), thread_name_prefix="feed") as pool:
                for indices in self._pieces():
                    yield self._read_on_cores(indices, pool)
            return
        # The parts of coming batches aren't known yet where they follow measured speeds.
        threads = 0 if self.split.automatic else min(THREADS_AHEAD, len(self.context.cores))
        reads = (functools.partial(self._read_for_gpu, indices, self.epoch) for indices in self._pieces())
        with contextlib.closing(prefetch.ahead(reads, threads)) as read:
            for images, labels in read:
                yield (
                    None if images is None else normalise(self.context, to_device(images, self.device)),
                    None if labels is None else to_device(labels, self.device),
                )

    def _pieces(self) -> Iterator[np.ndarray]:
        """Yield the indices [piece] of the pieces of the present epoch."""
        config, samples = self.context.config, self.context.arrays.train_samples
        permutation = training_order(config, samples, self.epoch)
        rank = self.context.rank if config.strategy["supports"]["shares_batch"] else 0
        for step in range(self.skip, self.steps):
            indices = order.batch_indices(permutation, step, config.global_batch)[self.split.part(rank)]
            for piece in range(self.parts):
                yield indices[order.even_slice(len(indices), piece, self.parts)]

    def _read_on_cores(self, indices: np.ndarray, pool: ThreadPoolExecutor) -> Batch:
        """Read, augment and normalise the samples `indices` on the CPU, a part on each of its cores."""
        context, cores = self.context, len(self.context.cores)
        shape = (len(indices), *context.arrays.shape)
        result = torch.empty(shape, dtype=torch.get_default_dtype()) if self.images else None

        def read(core: int) -> None:
            part = order.even_slice(len(indices), core, cores)
            images = torch.from_numpy(self._samples(indices[part], targets=False).inputs[0])
            assert result is not None
            normalise(context, images, result[part])

        if result is not None:
            # One core needs no other thread.
            list(map(read, range(cores)) if cores == 1 else pool.map(read, range(cores)))
        labels = self._samples(indices, inputs=False).targets if self.labels else ()
        return (
            None if result is None else result.permute(0, 3, 1, 2),
            torch.from_numpy(labels[0]) if labels else None,
        )

    def _read_for_gpu(self, indices: np.ndarray, epoch: int) -> Batch:
        """Read and augment the samples `indices` into memory from which a GPU can copy them by itself."""
        samples = training_samples(
            *(self.context.arrays, self.context.config, indices, epoch),
            inputs=self.images,
            targets=self.labels,
        )
        images, labels = (
            torch.from_numpy(arrays[0]) if arrays else None for arrays in (samples.inputs, samples.targets)
        )
        if self.device.type == "cuda":
            images, labels = (None if each is None else each.pin_memory() for each in (images, labels))
        return images, labels

    def _samples(self, indices: np.ndarray, **parts: bool) -> Samples:
        return training_samples(self.context.arrays, self.context.config, indices, self.epoch, **parts)
