"""Compute gradients on a copy of the model whose trained parameters are read and written as one vector."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from src.config import ConfigError, import_paths
from src.data.batches import training_samples
from src.models import adapt
from src.runtime.common import update_terms
from src.runtime.common.context import RankContext
from src.runtime.common.update_terms import WorkerTerms
from src.runtime.torch import compilation, scoring, setup, update_rule, vectors
from src.runtime.torch.tensors import input_tensors, target_tensors
from src.tasks.torch.outputs import autocast

NO_TERMS = WorkerTerms()


class Replica:
    """A copy of the model whose trained parameters are read and written as one vector.

    Attributes:
        model: the model, on the rank's device.
        names: of the parameters that get gradients, in the model's order; the vector is made of these.
    """

    def __init__(self, context: RankContext) -> None:
        """Build the model with the seed's weights."""
        self._context = context
        self._device = setup.root_device(context)
        self._own = import_paths.has_own_model(context.config) and context.config.audit is None
        self.model = setup.build(context).to(self._device)
        self._task = setup.make_task(context)
        reached, _ = setup.reached_parameters(context, self.model, self._device)
        named = dict(self.model.named_parameters())
        # What gets no gradient is trained by nobody, and stays.
        self.names = [name for name in named if name in reached]
        self._parameters = [named[name] for name in self.names]
        # It may begin to be trained, and no server has it.
        self._others = {name: parameter for name, parameter in named.items() if name not in reached}
        optimizer = update_terms.served_optimizer(context.config)
        moves = optimizer["name"] != "sgd" or optimizer["momentum"] or optimizer["weight_decay"]
        # Servers take a gradient that there isn't for zeros, by which such an update moves a weight.
        audited = context.config.audit is not None
        self._needs_all = bool(moves) and context.config.synchronous and not audited
        self._passes = 0
        compilation.compile_model(context, self.model)

    def warm_up(self) -> None:
        """Compile the model for a worker's micro-batch, if that is configured."""
        samples = self._context.arrays.train.read(slice(self._context.config.microbatch))
        inputs = input_tensors(self._context, samples.inputs, self._device)
        compilation.warm_up(self._context, self.model, inputs)

    def parameters(self) -> Tensor:
        """Copy the parameters into a vector [elements] in host memory, in the model's order."""
        return vectors.to_vector(self._parameters).cpu()

    def load(self, values: Tensor) -> None:
        """Set all parameters from a vector [elements], in the model's order."""
        vectors.from_vector(values.to(self._device), self._parameters)

    @torch.no_grad()
    def merge(self, values: Tensor, degree: float) -> None:
        """Move all parameters towards a vector [elements], by the part `degree` (0 to 1) of the way."""
        self.load(torch.lerp(self.parameters(), values, degree))

    @torch.no_grad()
    def descend(self, rate: float) -> None:
        """Take one step of plain SGD with learning rate `rate`, by the gradient that was computed last."""
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=rate)

    def buffers(self) -> list[np.ndarray]:
        """Return the bytes of the buffers, such as BatchNorm's running statistics, as uint8 [bytes] each."""
        return [
            buffer.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            for buffer in _written(self.model)
        ]

    @torch.no_grad()
    def load_buffers(self, values: tuple[np.ndarray, ...]) -> None:
        """Set the buffers from those of another replica, as its `buffers` returns them."""
        for buffer, value in zip(_written(self.model), values, strict=True):
            buffer.copy_(torch.from_numpy(value.copy()).view(buffer.dtype).reshape(buffer.shape))

    def gradient(
        self, indices: np.ndarray, epoch: int, divisor: float, terms: WorkerTerms = NO_TERMS
    ) -> tuple[Tensor, float, list[float]]:
        """Compute the gradient of a part of a batch.

        Args:
            indices: indices of the part's training samples.
            epoch: the epoch, from 0, that they are trained on in.
            divisor: what the loss of the global batch is a mean over.
            terms: how the gradient is clipped, and what is added to it.

        Returns:
            The part's contribution [elements] to the gradient of the global batch's mean loss, the part's own
            loss as `TrainingModule.take_loss` has a rank's, and the task's sums.
        """
        context = self._context
        count, weight = context.config.microbatches, context.config.global_batch / divisor
        total = scoring.empty(self._task)
        for parameter in self._parameters:
            parameter.grad = None
        self._passes += 1
        # A model may write into its weights in any pass, of which the servers would know nothing.
        watched = self._own and not self._passes & (self._passes - 1)
        before = self.parameters() if watched else None
        for part in np.array_split(indices, count):
            samples = training_samples(context.arrays, context.config, part, epoch)
            inputs = input_tensors(context, samples.inputs, self._device)
            targets = target_tensors(self._task, samples.targets, self._device)
            with autocast(context.config.precision, self._device):
                outputs = self._task.outputs(self.model(*inputs))
                loss, sums = scoring.training_sums(self._task, outputs, targets, weight)
            # The micro-batch's contribution to the global batch's mean, whatever its size.
            (loss / divisor).backward()
            total += sums.cpu()
        self._check_unwritten(before)
        self._check_gradients()
        share = len(indices) / context.config.global_batch
        if terms.clip_norm is not None:
            update_rule.clip(self._parameters, terms.clip_norm, lambda squares: squares / share**2)
        for parameter in self._parameters if terms.decay else ():
            if parameter.grad is not None:
                parameter.grad.add_(parameter.detach(), alpha=terms.decay * share)
        # A layer may be left out of a step.
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
        gradient = vectors.to_vector(parts).cpu()
        loss_sum, _, trained, *own = total.tolist()
        return gradient, loss_sum / trained, own

    def _check_unwritten(self, before: Tensor | None) -> None:
        """Raise `ConfigError` where parameters aren't those of `before` [elements], if these are known."""
        if before is None:
            return
        now = self.parameters()
        # What has diverged is told of elsewhere.
        if not bool(((now == before) | now.isnan()).all()):
            raise ConfigError(
                f"{adapt.key_and_name(self._context.config)}: its forward pass writes into its parameters, "
                "which servers have; choose strategy=single"
            )

    def _check_gradients(self) -> None:
        """Raise `ConfigError` where other parameters have gradients than when the model was looked at."""
        named = zip(self.names, self._parameters, strict=True)
        left_out = next((name for name, each in named if each.grad is None), None)
        if left_out is not None and self._needs_all:
            raise ConfigError(
                f"{left_out} gets no gradient in some steps, and a server's update would move it in these, "
                "too; strategies that keep the model whole, as ddp, leave it alone"
            )
        late = next((name for name, each in self._others.items() if each.grad is not None), None)
        if late is not None:
            raise ConfigError(
                f"{late} gets a gradient in some steps and got none in the first ones, so that no server has "
                "it; strategies that keep the model whole, as ddp, train it"
            )

    def score(self, first: int, last: int) -> np.ndarray:
        """Return the sums over test samples `first` to before `last`, as `scoring.test_sums` does."""
        with compilation.without(self._context):
            sums = scoring.score(self._context, self._task, self.model, slice(first, last), self._device)
        return sums.cpu().numpy()


def _written(model: nn.Module) -> list[Tensor]:
    """Return the buffers of a model, but for expanded ones, into which nobody writes."""
    return [
        buffer
        for buffer in model.buffers()
        if all(stride or size < 2 for size, stride in zip(buffer.shape, buffer.stride(), strict=True))
    ]
