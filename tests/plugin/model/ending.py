"""Models from outside that end the process in which they are built."""

from __future__ import annotations

import os
import sys

import numpy as np
from torch import nn


def build(*, how: str, code: int = 0, rank: int = 0) -> nn.Module:
    """Ends the process of `rank` as `how` says; the others get a model."""
    if os.environ.get("RANK") == str(rank):
        if how == "exit":
            os._exit(code)
        elif how == "raise":
            sys.exit(code)
        elif how == "signal":
            os.kill(os.getpid(), code)
        elif how == "eat":
            eaten = []
            while True:
                eaten.append(np.ones(2**20))
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


def build_keras(*, how: str, code: int = 0, rank: int = 0) -> object:
    """Ends the process likewise; the others get a Keras model."""
    import keras

    build(how=how, code=code, rank=rank)
    return keras.Sequential([keras.Input((28, 28, 1)), keras.layers.Flatten(), keras.layers.Dense(10)])
