"""Synthetic input trains under every framework; a run says whether its input or its computing bounds it."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from src.measure import arithmetic

PLUGIN = str(Path(__file__).parent / "plugin" / "conf")
FIXED = ("tracking.backend=none", "out=run", "hardware.device=cpu", "hardware.share_devices=true")
SYNTHETIC = ("dataset=synthetic", "dataset.shape=[16,16,3]", "dataset.classes=10", "dataset.test_samples=50")


def trained(commands, *words: str) -> dict[str, Any]:
    completed = commands.run(*FIXED, *words)
    assert completed.returncode == 0, completed.stderr
    metrics = json.loads((commands.folder / "run" / "metrics.json").read_text())
    assert metrics["status"] == "ok"
    return metrics | {"printed": completed.stdout}


@pytest.mark.slow
def test_a_run_on_slow_data_is_bound_by_input(commands) -> None:
    metrics = trained(commands, "--config-dir", PLUGIN, "dataset=slowly", "model=mlp", "batch=16")
    assert metrics["input_wait_fraction"] > 0.5
    assert "bound by input: ranks waited" in metrics["printed"]


@pytest.mark.slow
def test_a_run_on_a_slow_dataset_of_the_users_own_is_bound_by_input(commands) -> None:
    here = "tests.strategies.own_lightning"
    words = ("model=lightning", f"model.path={here}.Hooked", "dataset=torch", f"dataset.module={here}.Slow")
    metrics = trained(commands, *words, "batch=8")
    assert metrics["input_wait_fraction"] > 0.5
    assert "bound by input: ranks waited" in metrics["printed"]
    (row,) = csv.DictReader((commands.folder / "run" / "epochs.csv").open(newline=""))
    assert {"val_loss", "largest"} <= json.loads(row["metrics"]).keys()
    assert {"train_error", "weights"} <= json.loads(row["train_metrics"]).keys()


@pytest.mark.slow
def test_a_run_that_computes_is_not(commands) -> None:
    metrics = trained(commands, *SYNTHETIC, "model=resnet18", "batch=16", "dataset.samples=960")
    assert arithmetic.bound(metrics["input_wait_fraction"]) == "compute"
    assert "bound by input" not in metrics["printed"]
    assert metrics["data_source"] == "generated"


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("strategy=ddp", "workers=2"),
        pytest.param(("strategy=pipeline", "workers=2"), marks=pytest.mark.long),
        pytest.param(("strategy=hogwild", "workers=2"), marks=pytest.mark.long),
        pytest.param(("strategy=sandblaster_lbfgs", "workers=2"), marks=pytest.mark.long),
        ("strategy=tf_mirrored", "workers=2"),
        pytest.param(("strategy=tf_parameter_server", "workers=2"), marks=pytest.mark.long),
    ],
    ids=lambda words: words[0].partition("=")[2],
)
def test_augmented_synthetic_images_train_under_strategies(commands, words: tuple[str, ...]) -> None:
    sizes = ("dataset.samples=640", "batch=32", "epochs=2", "dataset.augment=crop_flip")
    metrics = trained(commands, *SYNTHETIC, *sizes, *words, "dataset.shuffle_window=64")
    assert metrics["data_source"] == "generated"
    assert metrics["epochs"] == 2


@pytest.mark.slow
def test_nothing_is_fetched_prepared_or_left(commands, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    completed = commands.run(
        *FIXED, *SYNTHETIC, "dataset.samples=64", "batch=16", SCALEGUIDE_CACHE=str(cache)
    )
    assert completed.returncode == 0, completed.stderr
    assert not list(cache.glob("prepared")) + list(cache.glob("files"))
    assert not (commands.folder / "prepared").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("dataset.shape=[16,16]",), ("dataset.shape=[16, 16]", "a list of 3 numbers")),
        (("dataset.shape=[16,0,3]",), ("dataset.shape=0", "at least 1")),
        (("dataset.shape=16",), ("dataset.shape=16", "a list of 3 numbers")),
        (("dataset.classes=1.5",), ("dataset.classes=1.5", "a whole number")),
        (("dataset.samples=100", "batch=128"), ("batch=128", "synthetic has 100", "batch <= 100")),
        # Mirrored letters are none, and its words move with the images; a label's images have no words.
        (
            ("dataset=icdar2015", "model=unet", "dataset.augment=crop_flip"),
            ("dataset.augment=crop_flip", "one of none, affine"),
        ),
        (("dataset.augment=affine",), ("dataset.augment=affine", "one of none, crop_flip")),
        (("dataset.augment=flip",), ("dataset.augment=flip", "none, crop_flip")),
        (("dataset.shuffle_window=8",), ("dataset.shuffle_window=8", "at least 32")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) and "=" in value[0] else "",
)
def test_mistakes_get_one_sentence(commands, words: tuple[str, ...], said: tuple[str, ...]) -> None:
    dataset = () if words[0].startswith("dataset=") else ("dataset=synthetic",)
    wrong = commands.run(*FIXED, *dataset, *words)
    assert wrong.returncode == 2
    assert len(wrong.stderr.splitlines()) == 1
    for part in said:
        assert part in wrong.stderr
