"""Weights from NumPy's generator."""

import numpy as np
import torch
from torch import nn


def build(classes: int, shape: tuple[int, ...]) -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, classes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.from_numpy(np.random.normal(0, 0.05, parameter.shape)))
    return model
