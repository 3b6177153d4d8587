"""A model from outside with an error that comes at the same step whenever it is trained."""

from __future__ import annotations

from torch import Tensor, nn


class Failing(nn.Module):
    """Counts what it has trained on by a buffer, which a checkpoint holds, and raises at batch `batch`."""

    def __init__(self, classes: int, batch: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(784, classes))
        self.register_buffer("seen", next(self.layers.parameters()).new_zeros(()))
        self.batch = batch

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            self.seen += 1
            if self.seen == self.batch:
                raise ValueError(f"batch {self.batch} is too much")
        return self.layers(images)
