"""What stand-ins show can be learned, and isn't obvious: ResNet-18 is far from chance and from perfect."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from src.data.samples import Samples
from src.models.torch.resnet import resnet18
from tests.data.generated.stand_in import choice, read, write

EPOCHS, BATCH = 3, 32
# Images are made this small to be quick, but for CIFAR-10's, which are.
SIDE = 32
MOST_TRAIN, MOST_TEST = 6_000, 1_000
LEAST_OVER_CHANCE, MOST_ACCURACY = 3, 0.95


def tensors(samples: Samples) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.from_numpy(np.ascontiguousarray(samples.inputs[0].transpose(0, 3, 1, 2)))
    return (images.float() / 255 - 0.45) / 0.25, torch.from_numpy(samples.targets[0])


def accuracy_after_training(train: Samples, test: Samples, classes: int, rate: float) -> float:
    torch.manual_seed(0)
    model = resnet18(classes=classes, shape=train.inputs[0].shape[1:], stem="3x3")
    images, labels = tensors(train)
    steps = len(labels) // BATCH
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * steps)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(labels))[: steps * BATCH].split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
            schedule.step()
    model.eval()
    images, labels = tensors(test)
    with torch.no_grad():
        predicted = torch.cat([model(part).argmax(1) for part in images.split(200)])
    return float((predicted == labels).float().mean())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "classes", "train_samples", "test_samples", "rate"),
    [
        ("cifar10", 10, 2_000, 400, 0.03),
        pytest.param("imagenet64", 1_000, 25_624, 1_000, 0.01, marks=pytest.mark.long),
        pytest.param("flowers", 5, 2_004, 499, 0.005, marks=pytest.mark.long),
        pytest.param("vnfoods30", 30, 2_000, 574, 0.02, marks=pytest.mark.long),
    ],
)
def test_three_epochs_of_resnet18_learn_something_but_not_all(
    tmp_path: Path, name: str, classes: int, train_samples: int, test_samples: int, rate: float
) -> None:
    dataset = choice(name)
    write(dataset, tmp_path / "archives")
    splits = read(dataset, tmp_path / "archives", tmp_path / "raw", SIDE)
    assert (len(splits.names), len(splits.train), len(splits.test)) == (classes, train_samples, test_samples)
    train = splits.train.read(0, min(train_samples, MOST_TRAIN))
    test = splits.test.read(0, min(test_samples, MOST_TEST))
    accuracy = accuracy_after_training(train, test, classes, rate)
    print(f"{name}: {accuracy:.3f}")
    assert LEAST_OVER_CHANCE / classes <= accuracy <= MOST_ACCURACY
