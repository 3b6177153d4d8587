"""A replica of a parameter-server worker trains on the pixels of the epoch that it is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from src.data.batches import training_samples
from src.runtime.common.context import RankContext
from src.runtime.torch.parameter_server.replica import Replica
from src.runtime.torch.tensors import input_tensors
from tests.prepared_data import load_arrays
from tests.support import config

WORDS = (
    "strategy=hogwild", "workers=2", "batch=16", "dataset=synthetic", "dataset.shape=[16,16,3]",
    "dataset.classes=10", "dataset.samples=100", "dataset.augment=crop_flip", "model=mlp",
)  # fmt: skip


@pytest.mark.parametrize("epoch", [0, 1, 17])
def test_samples_are_augmented_as_of_their_epoch(epoch: int) -> None:
    chosen = config(*WORDS)
    arrays = load_arrays(chosen.dataset)
    context = RankContext(chosen, 0, 2, arrays, Path(), (0,))
    replica, indices = Replica(context), np.arange(8, 16)
    seen: list[torch.Tensor] = []
    replica.model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    replica.gradient(indices, epoch, 8.0)
    expected = training_samples(arrays, chosen, indices, epoch)
    (images,) = input_tensors(context, expected.inputs, torch.device("cpu"))
    torch.testing.assert_close(torch.cat(seen), images, rtol=0, atol=0)
