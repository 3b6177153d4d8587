"""A strategy from outside: a plain torch loop that tells the recorder what it does."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from src.data import order
from src.data.batches import training_order, training_samples
from src.data.samples import Samples
from src.measure.recorder import Recorder
from src.models import adapt
from src.runtime.common.context import RankContext


def train(context: RankContext, recorder: Recorder) -> None:
    """Trains on one device without Lightning."""
    config, arrays = context.config, context.arrays
    torch.set_num_threads(len(context.cores))
    torch.manual_seed(config.seed)
    model = adapt.build(config, classes=arrays.classes, shape=arrays.shape)
    optimizer = torch.optim.SGD(
        model.parameters(), config.optimizer["lr"], weight_decay=config.strategy["shrink"]
    )

    def tensors(samples: Samples) -> tuple[Tensor, Tensor]:
        images = torch.from_numpy(samples.inputs[0]).permute(0, 3, 1, 2).float() / 255
        return images, torch.from_numpy(samples.targets[0])

    steps = order.steps_per_epoch(arrays.train_samples, config.batch)
    recorder.facts |= {"steps_per_epoch": steps, "parameters": sum(p.numel() for p in model.parameters())}
    recorder.start()
    for epoch in range(config.epochs):
        permutation = training_order(config, arrays.train_samples, epoch)
        for step in range(steps):
            indices = order.batch_indices(permutation, step, config.batch)
            images, labels = tensors(training_samples(arrays, config, indices, epoch))
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            recorder.step(loss.detach(), len(labels), epoch=epoch + 1)
        with recorder.off_clock(), torch.no_grad():
            images, labels = tensors(arrays.test.read(slice(0, 512)))
            logits = model(images)
            recorder.evaluated(
                epoch=epoch + 1,
                train_loss=None,
                train_accuracy=None,
                loss=float(functional.cross_entropy(logits, labels)),
                accuracy=float((logits.argmax(1) == labels).float().mean()),
                seconds=0.01,
            )
    recorder.finish("ok")
