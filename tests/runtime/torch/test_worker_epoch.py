"""A replica of a parameter-server worker trains on the pixels of the epoch that it is told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from src.data.batches import training_samples
from src.runtime.common.context import RankContext
from src.runtime.torch.parameter_server import replica
from tests.prepared_data import load_arrays
from tests.support import config

WORDS = (
    "strategy=hogwild", "workers=2", "batch=16", "dataset=synthetic", "dataset.shape=[16,16,3]",
    "dataset.classes=10", "dataset.samples=100", "dataset.augment=crop_flip", "model=mlp",
)  # fmt: skip


@pytest.mark.parametrize("epoch", [0, 1, 17])
def test_samples_are_augmented_as_of_their_epoch(epoch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = config(*WORDS)
    arrays = load_arrays(chosen.dataset)
    seen: list[np.ndarray] = []
    make = replica.input_tensors

    def watched(context: Any, inputs: Sequence[np.ndarray], device: torch.device) -> Any:
        seen.append(inputs[0])
        return make(context, inputs, device)

    monkeypatch.setattr(replica, "input_tensors", watched)
    indices = np.arange(8, 16)
    replica.Replica(RankContext(chosen, 0, 2, arrays, Path(), (0,))).gradient(indices, epoch, 8.0)
    expected = training_samples(arrays, chosen, indices, epoch).inputs[0]
    np.testing.assert_array_equal(np.concatenate(seen), expected)
