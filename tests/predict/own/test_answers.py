"""Runs on devices of which there are data sheets answer what was predicted of these."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from src.config import Config
from src.predict import sheets
from src.predict.own import runs
from src.predict.own.runs import Finished
from tests.support import config

A100 = "NVIDIA A100-SXM4-80GB"


@pytest.fixture(autouse=True)
def same_software(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "by_this_software", lambda _: True)


def on_gpus(*words: str, workers: int = 2) -> Config:
    """A run on as many GPUs as it has workers, as another machine has configured it."""
    made = config("model=mlp", "dataset=synthetic", "strategy=fsdp", f"workers={workers}", *words)
    hardware = dataclasses.replace(made.hardware, device="gpu", share_devices=False)
    return dataclasses.replace(made, hardware=hardware)


def finished(made: Config, names: list[str], **figures: Any) -> Finished:
    return Finished(made, 0.25, 7.0, {"gpus": names}, **figures)


def test_a_run_answers_seconds_and_bytes_of_its_own_device() -> None:
    made, asked = on_gpus(), config("model=mlp", "dataset=synthetic", "strategy=fsdp", "workers=2")
    found = runs.answers_described([finished(made, [A100, A100], live_bytes=1e9)])
    expected = {
        runs.signature_on(asked, "a100_80gb", unit): [(7.0, came, str(Path(made.out)))]
        for unit, came in (("seconds", 0.25), ("bytes", 1e9))
    }
    assert found == expected
    others = {
        runs.signature_on(asked, "a100_40gb", "seconds"),
        runs.signature_on(asked, "a100_80gb", "seconds", "ethernet_1g"),
        runs.signature_on(on_gpus("batch=32"), "a100_80gb", "seconds"),
    }
    assert len(others | set(expected)) == 5


@pytest.mark.parametrize("names", [[], ["NVIDIA GeForce GTX 1080"], [A100, "Tesla P40"]])
def test_a_run_on_other_devices_answers_nothing(names: list[str]) -> None:
    assert runs.answers_described([finished(on_gpus(), names)]) == {}
    assert runs.answers_described([finished(config("model=mlp", "dataset=synthetic"), [A100])]) == {}


def test_a_configuration_of_other_software_answers_nothing() -> None:
    made = on_gpus()
    old = {key: value for key, value in made.optimizer.items() if key != "clip_norm"}
    broken = dataclasses.replace(made, optimizer=old)
    assert runs.answers_described([finished(broken, [A100, A100])]) == {}


def test_every_sheet_reports_a_name_of_its_own() -> None:
    for name in (
        "A100-SXM4-40GB",
        "Tesla V100-SXM2-16GB",
        "Tesla V100-SXM3-32GB-H",
        "Tesla K80",
        "NVIDIA H200",
    ):
        assert sheets.reported_as([name, name]) is not None
    assert sheets.reported_as(["NVIDIA A100-PCIE-40GB"]) is None
