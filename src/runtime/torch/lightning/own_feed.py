"""Feed a LightningModule batches in the form in which its author expects them."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, NamedTuple

import pytorch_lightning as pl
import torch
from lightning_utilities import apply_to_collection
from torch import Tensor

from src.data import order
from src.data.live import LiveSplit
from src.runtime.common.context import RankContext
from src.runtime.torch import setup, step_seeds
from src.runtime.torch.feed import Feed
from src.runtime.torch.tensors import Tensors, input_tensors, target_tensors


class OwnBatch(NamedTuple):
    """A micro-batch in its author's form.

    Attributes:
        form: (inputs, targets), each of them a tensor or a tuple of several; of a user's own data what these
            are collated to.
        samples: how many samples these are.
    """

    form: Any
    samples: int


class OwnFeed(Feed):
    """A feed that yields batches in their author's form.

    Attributes:
        samples: how many samples the latest batch has.
        fresh: whether the latest batch hasn't been trained on yet.
        most: how many samples of each piece are fed, or all.
    """

    samples = 0
    fresh = False
    most: int | None = None

    def __iter__(self) -> Iterator[Any]:
        for place, batch in enumerate(super().__iter__()):
            assert isinstance(batch, OwnBatch)
            self.samples, self.fresh = batch.samples, True
            # What is drawn as the batch is moved to its device belongs to this step.
            if place % self.parts == 0:
                step_seeds.seed(self.context.config, self.context.rank, self.recorder.steps)
            yield batch.form

    def _batches(self) -> Generator[Any]:
        split = self.context.arrays.train
        if isinstance(split, LiveSplit):
            for piece in self._pieces():
                form = split.collated(piece.indices, self.context.config.seed, self.epoch)
                yield OwnBatch(in_default_type(form), len(piece.indices))
            return
        for batch in super()._batches():
            assert batch.inputs is not None and batch.targets is not None
            yield OwnBatch(formed(batch.inputs, batch.targets), len(batch.targets[0]))

    def _pieces(self) -> Iterator[Any]:
        for piece in super()._pieces():
            yield piece if self.most is None else piece._replace(indices=piece.indices[: self.most])


class TestFeed:
    """An iterable over a rank's test samples, in the same form.

    Attributes:
        samples: how many samples the latest batch has.
    """

    __test__ = False

    def __init__(self, feed: Feed, most: int | None = None) -> None:
        """Feed the samples that are scored by the rank of `feed`, or the first `most`."""
        self.feed = feed
        self.samples = 0
        context = feed.context
        part = feed.split.part(context.rank, context.arrays.test_samples)
        part = part if most is None else slice(0, min(most, context.arrays.test_samples))
        size = getattr(context.arrays.test, "batch", None) or context.config.evaluation_batch
        self.pieces = list(order.pieces(part, size))

    def __len__(self) -> int:
        return len(self.pieces)

    def __iter__(self) -> Iterator[Any]:
        context, device = self.feed.context, self.feed.device
        split = context.arrays.test
        for piece in self.pieces:
            self.samples = piece.stop - piece.start
            if isinstance(split, LiveSplit):
                yield in_default_type(split.collated(range(piece.start, piece.stop), context.config.seed, 0))
                continue
            read = split.read(piece)
            inputs = input_tensors(context, read.inputs, device)
            yield formed(inputs, target_tensors(self.feed.task, read.targets, device))


def first_batch(context: RankContext, samples: slice, device: torch.device) -> Any:
    """Return some of the first training samples as a batch on `device`, as they are without augmentation."""
    split = context.arrays.train
    if isinstance(split, LiveSplit):
        rows = range(*samples.indices(len(split)))
        batch = in_default_type(split.collated(rows, context.config.seed, 0))
        return pl.utilities.move_data_to_device(batch, device)
    read = split.read(samples)
    inputs = input_tensors(context, read.inputs, device)
    return formed(inputs, target_tensors(setup.make_task(context), read.targets, device))


def in_default_type(form: Any) -> Any:
    """Return a batch of any form with its fp32 numbers in torch's default type, as float64 needs it."""
    kind = torch.get_default_dtype()
    if kind == torch.float32:
        return form

    def converted(tensor: Tensor) -> Tensor:
        return tensor.to(kind) if tensor.dtype == torch.float32 else tensor

    return apply_to_collection(form, Tensor, converted)


def formed(inputs: Tensors, targets: Tensors) -> tuple[Any, Any]:
    """Return (inputs, targets), each of them its only tensor, or a tuple of several."""
    return (
        inputs[0] if len(inputs) == 1 else inputs,
        targets[0] if len(targets) == 1 else targets,
    )


def feeding(module: pl.LightningDataModule, feed: Feed, test_feed: TestFeed | None) -> pl.LightningDataModule:
    """Have a DataModule that is set up give these feeds for its loaders, and return it."""
    module.train_dataloader = lambda: feed  # type: ignore[method-assign]
    module.val_dataloader = lambda: test_feed  # type: ignore[method-assign]
    module.prepare_data = lambda: None  # type: ignore[method-assign]
    module.setup = lambda stage: None  # type: ignore[method-assign]
    return module
