"""What a rank is fed: its micro-batches of every step, in the order shared by all strategies."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from src.data import order
from src.measure.recorder import Recorder
from src.runtime.shares import Shares
from src.worker import Run

Batch = tuple[Tensor | None, Tensor | None]


def to_inputs(run: Run, images: Tensor, device: torch.device) -> Tensor:
    """Normalised images [batch, channels, height, width] from uint8 [batch, height, width, channels].

    They have torch's default dtype: fp32, or float64 where a test asks for sharper equality.
    """
    dtype = torch.get_default_dtype()
    mean = torch.tensor(run.arrays.mean, device=device, dtype=dtype).view(1, -1, 1, 1) * 255
    scale = 1 / (torch.tensor(run.arrays.std, device=device, dtype=dtype).view(1, -1, 1, 1) * 255)
    return images.to(device, non_blocking=True).permute(0, 3, 1, 2).to(dtype).sub_(mean).mul_(scale)


class Feed:
    """This rank's share of each step, in `parts` equal pieces, one epoch after the other.

    A rank that holds a part of the model leaves out what it doesn't read: `images`, `labels`.
    """

    def __init__(
        self,
        run: Run,
        recorder: Recorder,
        device: torch.device,
        *,
        parts: int,
        shares: Shares | None = None,
        images: bool = True,
        labels: bool = True,
    ) -> None:
        self.run = run
        self.recorder = recorder
        self.device = device
        self.parts = parts
        self.images = images
        self.labels = labels
        self.epoch = 0
        self.skip = 0
        self.shares = Shares(run.config) if shares is None else shares
        self.steps = order.steps_per_epoch(run.arrays.train_samples, run.config.global_batch)

    def start_at(self, epoch: int, step: int) -> None:
        """Goes on where `epoch` whole epochs and `step` steps of the next one are done."""
        self.epoch, self.skip = epoch, step

    def end_epoch(self) -> None:
        """The next epoch's order comes next, from its beginning."""
        self.epoch, self.skip = self.epoch + 1, 0

    def __len__(self) -> int:
        return (self.steps - self.skip) * self.parts

    def __iter__(self) -> Iterator[Batch]:
        config, arrays = self.run.config, self.run.arrays
        permutation = order.epoch_order(arrays.train_samples, config.seed, self.epoch)
        rank = self.run.rank if config.strategy["supports"]["shares_batch"] else 0
        for step in range(self.skip, self.steps):
            indices = order.batch_indices(permutation, step, config.global_batch)[self.shares.of(rank)]
            for piece in range(self.parts):
                with self.recorder.waiting_for_input():
                    part = indices[order.shard(len(indices), piece, self.parts)]
                    batch = self._images(part), self._labels(part)
                yield batch

    def _images(self, indices: np.ndarray) -> Tensor | None:
        if not self.images:
            return None
        return to_inputs(self.run, torch.from_numpy(self.run.arrays.train_images[indices]), self.device)

    def _labels(self, indices: np.ndarray) -> Tensor | None:
        if not self.labels:
            return None
        return torch.from_numpy(self.run.arrays.train_labels[indices]).to(self.device)
