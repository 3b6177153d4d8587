"""A worker that is told nothing but how many batches came before knows the epoch, and so its pixels."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor

from src.data import available
from src.data.batches import training_samples
from src.runtime.common.context import RankContext
from src.runtime.torch.parameter_server import ps_worker, replica
from src.runtime.torch.parameter_server.ps_worker import Worker
from tests.support import config

WORDS = (
    *("strategy=hogwild", "workers=2", "batch=16", "dataset=synthetic", "dataset.shape=[16,16,3]"),
    *("dataset.classes=10", "dataset.samples=100", "dataset.augment=crop_flip", "model=mlp"),
)


class Idle(Worker):
    """A worker without a coordinator."""

    def current_parameters(self) -> Tensor:
        raise NotImplementedError


@pytest.mark.parametrize(("step", "epoch"), [(0, 0), (5, 0), (6, 1), (17, 2)])
def test_a_step_is_augmented_as_of_its_epoch(step: int, epoch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = config(*WORDS)
    arrays = available.load(chosen.dataset)
    seen: list[np.ndarray] = []
    inputs = replica.to_inputs

    def watched(context: Any, images: np.ndarray, device: torch.device) -> Tensor:
        seen.append(images)
        return inputs(context, images, device)

    monkeypatch.setattr(replica, "to_inputs", watched)
    monkeypatch.setattr(ps_worker.messages, "connect", mock.Mock())
    worker = Idle(RankContext(chosen, 0, 2, arrays, Path(), (0,)), "nobody:1")
    seen.clear()
    indices = np.arange(8, 16)
    worker._gradient(indices, step)
    np.testing.assert_array_equal(
        np.concatenate(seen), training_samples(arrays, chosen, indices, epoch).inputs[0]
    )
