"""Feed a LightningModule batches in the form in which its author expects them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from src.data import order
from src.runtime.common.context import RankContext
from src.runtime.torch import setup, step_seeds
from src.runtime.torch.feed import Batch, Feed
from src.runtime.torch.tensors import Tensors, input_tensors, target_tensors


class OwnFeed(Feed):
    """A feed whose batches are (inputs, targets), each of them a tensor, or a tuple where there are several.

    Attributes:
        samples: how many samples the latest batch has.
        divisor: how many the global batch has.
        fresh: whether the latest batch hasn't been trained on yet.
        most: how many samples of each piece are fed, or all.
    """

    samples = 0
    divisor = 1.0
    fresh = False
    most: int | None = None

    def __iter__(self) -> Iterator[Any]:
        for place, batch in enumerate(super().__iter__()):
            assert isinstance(batch, Batch) and batch.inputs is not None and batch.targets is not None
            self.samples, self.divisor, self.fresh = len(batch.targets[0]), batch.divisor, True
            # What is drawn as the batch is moved to its device belongs to this step.
            if place % self.parts == 0:
                step_seeds.seed(self.context.config, self.context.rank, self.recorder.steps)
            yield formed(batch.inputs, batch.targets)

    def _pieces(self) -> Iterator[Any]:
        for piece in super()._pieces():
            yield piece if self.most is None else piece._replace(indices=piece.indices[: self.most])


class TestFeed:
    """An iterable over a rank's test samples, in the same form.

    Attributes:
        samples: how many samples the latest batch has.
    """

    def __init__(self, feed: Feed, most: int | None = None) -> None:
        """Feed the samples that are scored by the rank of `feed`, or the first `most`."""
        self.feed = feed
        self.samples = 0
        context = feed.context
        part = feed.split.part(context.rank, context.arrays.test_samples)
        part = part if most is None else slice(0, min(most, context.arrays.test_samples))
        self.pieces = list(order.pieces(part, context.config.evaluation_batch))

    def __len__(self) -> int:
        return len(self.pieces)

    def __iter__(self) -> Iterator[Any]:
        context, device = self.feed.context, self.feed.device
        for piece in self.pieces:
            read = context.arrays.test.read(piece)
            self.samples = len(read)
            inputs = input_tensors(context, read.inputs, device)
            yield formed(inputs, target_tensors(self.feed.task, read.targets, device))


def first_batch(context: RankContext, samples: slice, device: torch.device) -> Any:
    """Return some of the first training samples as a batch on `device`, as they are without augmentation."""
    read = context.arrays.train.read(samples)
    inputs = input_tensors(context, read.inputs, device)
    return formed(inputs, target_tensors(setup.make_task(context), read.targets, device))


def formed(inputs: Tensors, targets: Tensors) -> tuple[Tensor | Tensors, Tensor | Tensors]:
    """Return (inputs, targets), each of them its only tensor, or a tuple of several."""
    return (
        inputs[0] if len(inputs) == 1 else inputs,
        targets[0] if len(targets) == 1 else targets,
    )
