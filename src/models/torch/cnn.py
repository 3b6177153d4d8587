"""Build paper 5's shallow network (section III.B) in torch.

Its layers are conv 20, conv 50 and dense 500, with 800 features of a 28x28 image.
"""

from __future__ import annotations

from torch import nn


def build(*, classes: int, shape: tuple[int, int, int]) -> nn.Module:
    """Build a model of images [batch, channels, height, width] with logits [batch, classes].

    `shape` is (height, width, channels).

    Raises:
        ValueError: for images smaller than 16x16, which leave no features.
    """
    height, width, channels = shape
    rows, columns = ((side - 4) // 2 - 4 for side in (height, width))
    if rows < 2 or columns < 2:
        raise ValueError(f"cnn needs images of at least 16x16, got {height}x{width}")
    return nn.Sequential(
        nn.Conv2d(channels, 20, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(20, 50, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(50 * (rows // 2) * (columns // 2), 500),
        nn.ReLU(),
        nn.Linear(500, classes),
    )
