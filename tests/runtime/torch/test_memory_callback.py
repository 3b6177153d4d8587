"""Tensors are followed in the warm-up alone, whose steps aren't timed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from src.compat import live_tensors
from src.runtime.torch.lightning.memory_callback import MemoryCallback


@pytest.mark.parametrize(("lag", "followed"), [(1, [2]), (2, [0, 1, 2])])
def test_what_is_timed_is_not_followed(lag: int, followed: list[int], tmp_path: Path) -> None:
    layer = nn.Linear(2, 2)
    module: Any = SimpleNamespace(lag=lag, parameters=layer.parameters, held_tensors=dict)
    trainer: Any = SimpleNamespace(strategy=None, optimizers=[])
    recorder: Any = SimpleNamespace(config=SimpleNamespace(warmup_steps=3), trained_steps=0, folder=tmp_path)
    callback = MemoryCallback(module, recorder, torch.device("cpu"), 1)
    seen = []
    for step in range(6):
        batch: Any = (torch.ones(1, 2),)
        callback.on_train_batch_start(trainer, module, batch, step)
        seen += [step] * len(live_tensors._following)
        layer(batch[0]).sum().backward()
        callback.on_train_batch_end(trainer, module, None, batch, step)
        recorder.trained_steps += 1
        assert (tmp_path / "live_tensors.json").exists() == (step >= 2)
    assert seen == followed and not live_tensors._following
