"""EAST learns to find words, and its pictures and figures are a run's like any other's."""

from __future__ import annotations

import csv
import json

import pytest

from src.run import files
from tests.conftest import Commands
from tests.support import ROOT


@pytest.mark.long
def test_half_a_minute_of_training_finds_words_of_other_scenes(commands: Commands) -> None:
    completed = commands.run(
        "--config-dir",
        str(ROOT / "tests" / "plugin" / "conf"),
        "dataset=scenes",
        "model=east",
        "model.width=16",
        "batch=8",
        "epochs=60",
        "optimizer.name=adam",
        "optimizer.lr=0.003",
        "optimizer.schedule=cosine",
        "dataset.augment=affine",
        "tracking.backend=none",
        "hardware.share_devices=true",
        "hardware.device=cpu",
        "out=run",
        PYTHONPATH=str(ROOT),
    )
    assert completed.returncode == 0, completed.stderr
    folder = commands.folder / "run"
    metrics = json.loads((folder / files.METRICS).read_text())
    assert (metrics["task"], metrics["metric"]) == ("text_detection", "f_measure")
    with (folder / files.EPOCHS).open(newline="") as file:
        first, *_, last = csv.DictReader(file)
    assert float(last["loss"]) < 0.7 * float(first["loss"])
    assert float(last["score"]) > 0.3
    # Words are counted in test scenes alone.
    assert last["train_score"] == "" and json.loads(last["train_metrics"]) == {}
    assert (folder / files.PREDICTIONS).stat().st_size > 0
