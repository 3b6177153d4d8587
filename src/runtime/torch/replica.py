"""A worker that takes turns: computes gradients on what it is handed, between a fetch and a push."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from src.runtime.torch import basics
from src.runtime.torch.feed import to_inputs
from src.worker import Run


class Replica:
    """A copy of the model whose parameters are one vector to others."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._device = basics.root_device(run)
        self.model = basics.build(run).to(self._device)
        self._parameters = list(self.model.parameters())

    def parameters(self) -> Tensor:
        """A copy [elements] in host memory, in the order of the model's parameters."""
        with torch.no_grad():
            return torch.cat([parameter.reshape(-1) for parameter in self._parameters]).cpu()

    @torch.no_grad()
    def load(self, values: Tensor) -> None:
        """Takes all parameters from a vector [elements]."""
        parts = values.to(self._device).split([parameter.numel() for parameter in self._parameters])
        for parameter, part in zip(self._parameters, parts, strict=True):
            parameter.copy_(part.view(parameter.shape))

    @torch.no_grad()
    def merge(self, values: Tensor, degree: float) -> None:
        """Moves all parameters by `degree` (0 to 1) towards a vector [elements]."""
        self.load(torch.lerp(self.parameters(), values, degree))

    @torch.no_grad()
    def descend(self, rate: float) -> None:
        """One step of plain SGD by the gradient that was computed last."""
        for parameter in self._parameters:
            assert parameter.grad is not None
            parameter.sub_(parameter.grad, alpha=rate)

    def buffers(self) -> list[np.ndarray]:
        """Floating buffers, as BatchNorm's running statistics."""
        return [buffer.cpu().numpy() for buffer in _floating(self.model)]

    @torch.no_grad()
    def load_buffers(self, values: tuple[np.ndarray, ...]) -> None:
        """Takes what `buffers` gave elsewhere."""
        for buffer, value in zip(_floating(self.model), values, strict=True):
            buffer.copy_(torch.from_numpy(value))

    def gradient(self, indices: np.ndarray) -> tuple[Tensor, float, float]:
        """Gradient [elements] of the share's part of the batch's mean loss, the share's mean loss, and its
        correct answers."""
        run = self._run
        parts = run.config.microbatches
        total = torch.zeros(3, dtype=torch.float64)
        for parameter in self._parameters:
            parameter.grad = None
        for part in np.array_split(indices, parts):
            images = to_inputs(run, torch.from_numpy(run.arrays.train_images[part]), self._device)
            labels = torch.from_numpy(run.arrays.train_labels[part]).to(self._device)
            with self._precision():
                logits = self.model(images)
                loss = functional.cross_entropy(logits, labels)
            # Its part of the global batch's mean, whatever the worker's share.
            (loss * (len(labels) / run.config.global_batch)).backward()
            total += basics.sums(loss.detach() * len(labels), logits, labels).cpu()
        found = torch.cat([p.grad.reshape(-1) for p in self._parameters if p.grad is not None]).cpu()
        loss_sum, correct, count = total.tolist()
        return found, loss_sum / count, correct

    @torch.no_grad()
    def score(self, first: int, last: int) -> np.ndarray:
        """(summed loss, correct answers) over test samples `first` to before `last`."""
        run, part = self._run, slice(first, last)
        self.model.eval()
        try:
            images = torch.from_numpy(run.arrays.test_images[part].copy())
            labels = torch.from_numpy(run.arrays.test_labels[part].copy()).to(self._device)
            logits = self.model(to_inputs(run, images, self._device)).float()
            loss = functional.cross_entropy(logits, labels, reduction="sum")
            return basics.sums(loss, logits, labels)[:2].double().cpu().numpy()
        finally:
            self.model.train()

    @contextlib.contextmanager
    def _precision(self) -> Iterator[None]:
        bf16 = self._run.config.precision == "bf16"
        with torch.autocast(self._device.type, torch.bfloat16, enabled=bf16):
            yield


def _floating(model: nn.Module) -> list[Tensor]:
    return [buffer for buffer in model.buffers() if buffer.is_floating_point()]
