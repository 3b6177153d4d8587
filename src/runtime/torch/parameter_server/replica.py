"""Compute gradients on a copy of the model whose parameters are read and written as one vector."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from src.data.batches import training_samples
from src.runtime.common.context import RankContext
from src.runtime.common.update_terms import WorkerTerms
from src.runtime.torch import compilation, setup, update_rule
from src.runtime.torch.feed import to_device, to_inputs

NO_TERMS = WorkerTerms()


class Replica:
    """A copy of the model whose parameters are read and written as one vector.

    Attributes:
        model: the model, on the rank's device.
    """

    def __init__(self, context: RankContext) -> None:
        """Build the model with the seed's weights."""
        self._context = context
        self._device = setup.root_device(context)
        self.model = setup.build(context).to(self._device)
        self._parameters = list(self.model.parameters())
        compilation.compile_model(context, self.model)

    def warm_up(self) -> None:
        """Compile the model for a worker's micro-batch, if that is configured."""
        samples = self._context.arrays.train.read(slice(self._context.config.microbatch))
        inputs = to_inputs(self._context, samples.inputs[0], self._device)
        compilation.warm_up(self._context, self.model, [inputs])

    def parameters(self) -> Tensor:
        """Copy the parameters into a vector [elements] in host memory, in the model's order."""
        with torch.no_grad():
            return torch.cat([parameter.reshape(-1) for parameter in self._parameters]).cpu()

    @torch.no_grad()
    def load(self, values: Tensor) -> None:
        """Set all parameters from a vector [elements], in the model's order."""
        parts = values.to(self._device).split([parameter.numel() for parameter in self._parameters])
        for parameter, part in zip(self._parameters, parts, strict=True):
            parameter.copy_(part.view(parameter.shape))

    @torch.no_grad()
    def merge(self, values: Tensor, degree: float) -> None:
        """Move all parameters towards a vector [elements], by the part `degree` (0 to 1) of the way."""
        self.load(torch.lerp(self.parameters(), values, degree))

    @torch.no_grad()
    def descend(self, rate: float) -> None:
        """Take one step of plain SGD with learning rate `rate`, by the gradient that was computed last."""
        for parameter in self._parameters:
            assert parameter.grad is not None
            parameter.sub_(parameter.grad, alpha=rate)

    def buffers(self) -> list[np.ndarray]:
        """Return the floating-point buffers, such as BatchNorm's running statistics."""
        return [buffer.cpu().numpy() for buffer in _floating(self.model)]

    @torch.no_grad()
    def load_buffers(self, values: tuple[np.ndarray, ...]) -> None:
        """Set the floating-point buffers from those of another replica, as its `buffers` returns them."""
        for buffer, value in zip(_floating(self.model), values, strict=True):
            buffer.copy_(torch.from_numpy(value))

    def gradient(
        self, indices: np.ndarray, epoch: int, terms: WorkerTerms = NO_TERMS
    ) -> tuple[Tensor, float, float]:
        """Compute the gradient of a part of a batch.

        Args:
            indices: indices of the part's training samples.
            epoch: the epoch, from 0, that they are trained on in.
            terms: how the gradient is clipped, and what is added to it.

        Returns:
            The part's contribution [elements] to the gradient of the global batch's mean loss, the part's own
            mean loss, and its correct answers.
        """
        context = self._context
        parts = context.config.microbatches
        total = torch.zeros(3, dtype=torch.float64)
        for parameter in self._parameters:
            parameter.grad = None
        for part in np.array_split(indices, parts):
            samples = training_samples(context.arrays, context.config, part, epoch)
            images = to_inputs(context, samples.inputs[0], self._device)
            labels = to_device(samples.targets[0], self._device)
            with self._precision():
                logits = self.model(images)
                loss = functional.cross_entropy(logits, labels)
            # The micro-batch's contribution to the global batch's mean, whatever its size.
            (loss * (len(labels) / context.config.global_batch)).backward()
            total += setup.sums(loss.detach() * len(labels), logits, labels).cpu()
        share = len(indices) / context.config.global_batch
        if terms.clip_norm is not None:
            update_rule.clip(self._parameters, terms.clip_norm, lambda squares: squares / share**2)
        for parameter in self._parameters if terms.decay else ():
            if parameter.grad is not None:
                parameter.grad.add_(parameter.detach(), alpha=terms.decay * share)
        gradient = torch.cat([p.grad.reshape(-1) for p in self._parameters if p.grad is not None]).cpu()
        loss_sum, correct, count = total.tolist()
        return gradient, loss_sum / count, correct

    @torch.no_grad()
    def score(self, first: int, last: int) -> np.ndarray:
        """Return the summed loss and the correct answers [2] over test samples `first` to before `last`."""
        context, part = self._context, slice(first, last)
        self.model.eval()
        try:
            samples = context.arrays.test.read(part)
            labels = to_device(samples.targets[0], self._device)
            with compilation.without(context):
                logits = self.model(to_inputs(context, samples.inputs[0], self._device)).float()
            loss = functional.cross_entropy(logits, labels, reduction="sum")
            return setup.sums(loss, logits, labels)[:2].double().cpu().numpy()
        finally:
            self.model.train()

    @contextlib.contextmanager
    def _precision(self) -> Iterator[None]:
        bf16 = self._context.config.precision == "bf16"
        with torch.autocast(self._device.type, torch.bfloat16, enabled=bf16):
            yield


def _floating(model: nn.Module) -> list[Tensor]:
    return [buffer for buffer in model.buffers() if buffer.is_floating_point()]
