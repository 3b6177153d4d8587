"""Each dataset of the papers trains from archives in its official format, generated and really read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Commands
from tests.support import instances

# Of each dataset: a model for its task, and what keeps a training short.
TRAININGS = {
    "cifar10": ("cnn", ("fraction=0.04",)),
    "imagenet64": ("cnn", ("fraction=0.002",)),
    "flowers": ("cnn", ("size=64",)),
    "vnfoods30": ("cnn", ("size=64",)),
    "icdar2015": ("east", ("size=128", "fraction=0.05")),
    "icdar2013": ("east", ("size=128",)),
}


@pytest.mark.slow
@pytest.mark.parametrize("dataset", instances(TRAININGS, "imagenet64", "icdar2013"))
def test_it_trains_from_generated_archives(dataset: str, commands: Commands, tmp_path: Path) -> None:
    model, options = TRAININGS[dataset]
    completed = commands.run(
        f"dataset={dataset}",
        "dataset.source=generated",
        *(f"dataset.{option}" for option in options),
        f"model={model}",
        "batch=8",
        "dataset.limit=512",
        "dataset.test_limit=64",
        "tracking.backend=none",
        "hardware.share_devices=true",
        "hardware.device=cpu",
        "out=run",
        SCALEGUIDE_CACHE=str(tmp_path / "cache"),
    )
    assert completed.returncode == 0, completed.stderr
    metrics = json.loads((commands.folder / "run" / "metrics.json").read_text())
    assert (metrics["status"], metrics["dataset"], metrics["data_source"]) == ("ok", dataset, "generated")
    assert 0 < metrics["loss"] < 100
    prepared = [path.name for path in (tmp_path / "cache" / "prepared").iterdir() if path.is_dir()]
    assert prepared and all(name.startswith(f"{dataset}-generated") for name in prepared)
