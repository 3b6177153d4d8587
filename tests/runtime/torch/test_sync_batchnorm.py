"""Synchronised BatchNorm on CPU ranks is torch's own BatchNorm on all their samples."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from src.runtime.torch.lightning.sync_batchnorm import CPUSyncBatchNorm, convert
from tests.support import run_ranks


def test_two_ranks_compute_what_batchnorm_computes_on_the_union(tmp_path: Path) -> None:
    run_ranks("tests.runtime.torch.sync_batchnorm_rank", [], world=2, logs=tmp_path, limit=60)
    assert all("agreed" in path.read_text() for path in tmp_path.glob("*.log"))


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
