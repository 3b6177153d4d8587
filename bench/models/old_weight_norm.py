"""Old-style `weight_norm`, which can't be copied."""

import warnings

from torch import nn
from torch.nn.utils import weight_norm


def build(classes: int, shape: tuple[int, ...]) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        first = weight_norm(nn.Linear(784, 32))
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Linear(32, classes))
