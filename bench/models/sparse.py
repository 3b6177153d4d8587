"""A table of embeddings with sparse gradients."""

from torch import Tensor, nn


class Levels(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.table, self.head = nn.EmbeddingBag(8, 32, sparse=True), nn.Linear(32, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.table((images.flatten(1).clamp(-0.4, 2.8) * 2 + 0.9).long()))


def build(classes: int, shape: tuple[int, ...]) -> nn.Module:
    return Levels(classes)
