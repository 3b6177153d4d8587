"""Trains the shallow network for ten steps under torch; leaves its first weights and its losses.

python -m tests.models.torch_process FOLDER      with a launcher's environment variables
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

from src.data import arrays, available
from src.measure.recorder import Recorder
from src.runtime.common.context import RankContext
from src.runtime.torch import setup
from src.strategies.torch import single
from tests.support import config


def main() -> None:
    folder = Path(sys.argv[1])
    chosen = config("strategy=single", "model=cnn", "batch=32", "dataset.limit=320")
    data = arrays.load(available.ensure(chosen.dataset), 320)
    context = RankContext(chosen, 0, 1, data, folder, (min(os.sched_getaffinity(0)),))
    state = setup.build(context).state_dict()
    # Keras keeps kernels as [height, width, in, out] and [in, out], and flattens [height, width, channels].
    weights = [tensor.numpy() for tensor in state.values()]
    for place, weight in enumerate(weights):
        if weight.ndim == 4:
            weights[place] = weight.transpose(2, 3, 1, 0)
        elif weight.shape == (500, 800):
            weights[place] = weight.reshape(500, 50, 4, 4).transpose(2, 3, 1, 0).reshape(800, 500)
        elif weight.ndim == 2:
            weights[place] = weight.T
    np.savez(folder / "weights.npz", *weights)
    single.train(context, Recorder(chosen, 0, folder / "torch", started=time.time(), probes=False))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
