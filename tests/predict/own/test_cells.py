"""Runs of more workers than there are devices here are composed as if there were as many."""

from __future__ import annotations

import pytest

from src.config import ConfigError
from src.predict.own import cells

WORDS = ("model=mlp", "dataset=synthetic", "strategy=ddp", "batch=128", "hardware.device=cpu")


def test_each_worker_has_a_device_of_its_own() -> None:
    few, many = cells.of([*WORDS, "workers=1,64"])
    assert (few.workers, many.workers, many.microbatch) == (1, 64, 2)
    assert not many.hardware.share_devices
    assert many.out == "runs/ddp-mlp-synthetic-w64-b128-s0-hardware.device=cpu"


def test_whoever_asks_for_shared_devices_has_them() -> None:
    (cell,) = cells.of([*WORDS, "workers=64", "hardware.share_devices=true"])
    assert cell.hardware.share_devices


def test_other_mistakes_stay_mistakes() -> None:
    with pytest.raises(ConfigError, match="batch=128"):
        cells.of([*WORDS, "workers=3"])
