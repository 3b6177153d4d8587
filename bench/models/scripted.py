"""A scripted model (`torch.jit.script`)."""

import warnings

import torch
from torch import nn


def build(classes: int, shape: tuple[int, ...]) -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, classes))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted: nn.Module = torch.jit.script(model)
    return scripted
