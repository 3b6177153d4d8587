"""BatchNorm that its author has put into evaluation mode."""

from torch import nn


def build(classes: int, shape: tuple[int, ...]) -> nn.Module:
    norm = nn.BatchNorm2d(8)
    norm.eval()
    return nn.Sequential(nn.Conv2d(1, 8, 3, 2), norm, nn.ReLU(), nn.Flatten(), nn.Linear(1352, classes))
