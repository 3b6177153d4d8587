"""Synchronised BatchNorm on CPU ranks is torch's own BatchNorm on all their samples."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from torch import nn

from src.runtime.torch.lightning.sync_batchnorm import CPUSyncBatchNorm, convert
from tests.support import run_ranks


def test_two_ranks_compute_what_batchnorm_computes_on_the_union(tmp_path: Path) -> None:
    run_ranks("tests.runtime.torch.sync_batchnorm_rank", [], world=2, logs=tmp_path, limit=60)
    logs = [log.read_text() for log in tmp_path.glob("*.log")]
    assert len(logs) == 2 and all("agreed" in log for log in logs)


def test_converting_replaces_every_batchnorm_and_keeps_its_state() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sequential(nn.BatchNorm2d(2, momentum=0.3), nn.ReLU()))
    model[1][0].running_mean.fill_(7)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    converted = convert(model)
    layer = converted[1][0]
    assert isinstance(layer, CPUSyncBatchNorm) and layer.momentum == 0.3
    after = converted.state_dict()
    assert after.keys() == before.keys()
    assert all(after[name].equal(value) for name, value in before.items())


# A rounding to bf16 is 2^-9 of a number; these are means over 64 samples, of ten steps.
BF16 = 2**-7


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("mpi", marks=pytest.mark.slow)])
def test_a_bf16_run_trains_as_one_device_does_on_the_union(commands, mnist: None, strategy: str) -> None:
    words = (
        "model=custom",
        "model.path=tests.plugin.model.tiny.normalised",
        "precision=bf16",
        "batch=64",
        "dataset.limit=640",
        "dataset.test_limit=200",
        "optimizer.lr=0.01",
        "hardware.device=cpu",
        "hardware.share_devices=true",
        "tracking.backend=none",
    )
    chosen = ((f"strategy={strategy}", "workers=2", "batchnorm=sync"), ("strategy=single",))
    losses = []
    for out, own in zip(("both", "alone"), chosen, strict=True):
        completed = commands.run(*own, *words, f"out={out}")
        assert completed.returncode == 0, completed.stderr
        with (commands.folder / out / "steps.csv").open(newline="") as file:
            losses.append([float(row["loss"]) for row in csv.DictReader(file) if row["rank"] == "0"])
    assert losses[0] == pytest.approx(losses[1], rel=BF16)
    assert len(losses[0]) == 10
