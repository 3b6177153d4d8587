"""A rank's memory is marked before its GPU is used."""

from __future__ import annotations

import pytest
import torch

from src.measure import memory


def test_a_gpu_that_is_not_initialized_has_no_peak_to_forget() -> None:
    assert not torch.cuda.is_initialized()
    memory.mark_level(torch.device("cuda", 0))
    assert memory.peak(torch.device("cuda", 0)) == {"memory_peak_bytes": 0, "memory_level_bytes": 0}


def test_a_gpu_that_is_initialized_has_its_peak_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[bool] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: forgotten.append(True))
    memory.mark_level(torch.device("cuda", 0))
    memory.restart_peak()
    assert forgotten == [True, True]
