"""Synchronised BatchNorm on CPU ranks is torch's own BatchNorm on all their samples."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from torch import Tensor, nn

from src.config import ConfigError
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


class Activated(nn.BatchNorm2d):
    """Has its activation in it, as timm's have."""

    def forward(self, values: Tensor) -> Tensor:
        return super().forward(values).relu()


def hooked() -> nn.Module:
    layer = nn.BatchNorm2d(2)
    layer.register_forward_hook(lambda *_: None)
    return layer


def shared() -> nn.Module:
    layer = nn.BatchNorm2d(2)
    return nn.ModuleList([layer, layer])


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (Activated(2), "is a Activated with a forward pass of its own"),
        (hooked(), "has hooks"),
        (shared(), "has several names"),
    ],
)
def test_a_batchnorm_that_is_more_is_not_replaced(layer: nn.Module, why: str) -> None:
    with pytest.raises(ConfigError, match=rf"^batchnorm=sync: the model's 0\S* {why}, and can't be replaced"):
        convert(nn.Sequential(layer))


def test_a_replaced_layer_has_the_same_weights() -> None:
    layer = nn.BatchNorm1d(2, affine=True).double()
    layer.bias.requires_grad_(False)
    (twin,) = convert(nn.Sequential(layer))
    assert twin.weight is layer.weight and twin.bias is layer.bias and twin.running_var is layer.running_var
    (plain,) = convert(nn.Sequential(nn.BatchNorm1d(2, affine=False, track_running_stats=False)))
    assert plain.weight is None and plain.running_mean is None and not plain.track_running_stats


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
