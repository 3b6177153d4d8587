"""A strategy, model, dataset or task is one file of code and one YAML file; nothing in src/ knows of it."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

PLUGIN = str(Path(__file__).parent / "plugin" / "conf")
FIXED = ("--config-dir", PLUGIN, "tracking.backend=none", "out=run", "hardware.device=cpu")


def trained(commands, *words: str, **environment: str) -> dict[str, Any]:
    completed = commands.run(*FIXED, *words, **environment)
    assert completed.returncode == 0, completed.stderr
    metrics = json.loads((commands.folder / "run" / "metrics.json").read_text())
    assert metrics["status"] == "ok"
    return metrics


def losses(commands) -> list[float]:
    with (commands.folder / "run" / "steps.csv").open(newline="") as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


def test_a_strategy_from_outside_trains(commands, mnist: None) -> None:
    words = ("strategy=plain_loop", "model=mlp", "dataset.limit=7680", "optimizer.lr=0.05")
    metrics = trained(commands, *words)
    assert (metrics["strategy"], metrics["epochs"]) == ("plain_loop", 1)
    assert metrics["accuracy"] > 0.6
    assert metrics["samples_per_second"] > 0
    assert len(losses(commands)) == 60


def test_a_model_from_outside_is_trained(commands, mnist: None) -> None:
    metrics = trained(commands, "model=tiny", "model.width=2", "dataset.limit=2560")
    # 2 kernels of 9 weights with biases, and 32 features to 10 classes.
    assert (metrics["model"], metrics["parameters"]) == ("tiny", 2 * 10 + 33 * 10)


def test_a_model_by_its_import_path_is_trained(commands, mnist: None) -> None:
    path = "tests.plugin.model.tiny.Tiny"
    metrics = trained(
        commands, "model=custom", f"model.path={path}", "+model.options.width=2", "dataset.limit=2560"
    )
    # Its first convolution asks for 3 channels and is made anew for MNIST's one.
    assert (metrics["model"], metrics["parameters"]) == (path, 2 * 10 + 33 * 10)


def test_a_dataset_from_outside_is_trained_on(commands, tmp_path: Path) -> None:
    metrics = trained(
        commands,
        "dataset=stripes",
        "model=mlp",
        "batch=32",
        "epochs=2",
        SCALEGUIDE_CACHE=str(tmp_path / "cache"),
    )
    assert (metrics["dataset"], metrics["data_source"]) == ("stripes", "generated")
    assert metrics["accuracy"] > 0.95


def test_all_three_go_together_and_their_options_are_checked(commands, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    chosen = ("strategy=plain_loop", "model=tiny", "dataset=stripes", "batch=32")
    metrics = trained(commands, *chosen, "epochs=3", "strategy.shrink=0.001", SCALEGUIDE_CACHE=cache)
    assert metrics["accuracy"] > 0.8
    assert metrics["steps_to_target"] is None
    assert sum(losses(commands)[-8:]) < sum(losses(commands)[:8])
    wrong = commands.run(*FIXED, *chosen, "strategy.shrink=2", SCALEGUIDE_CACHE=cache)
    assert (wrong.returncode, wrong.stderr) == (2, "error: strategy.shrink=2: must be at most 1\n")
    missing = commands.run(*FIXED, "strategy=plain_lop")
    assert missing.returncode == 2
    assert "did you mean plain_loop?" in missing.stderr


def test_a_task_from_outside_is_learned_from_two_inputs(commands, tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    chosen = ("dataset=angles", "model=joined", "batch=32", "epochs=3", "optimizer.lr=0.05")
    metrics = trained(commands, *chosen, SCALEGUIDE_CACHE=cache)
    assert (metrics["task"], metrics["metric"], metrics["accuracy"]) == (
        "regression",
        "mean_absolute_error",
        None,
    )
    with (commands.folder / "run" / "epochs.csv").open(newline="") as file:
        scores = [float(row["score"]) for row in csv.DictReader(file)]
    assert metrics["score"] == scores[-1] < scores[0]
    for words, sentence in (
        (("model=mlp", "strategy=tf_single"), "task=regression: exists for torch and strategy tf_single"),
        (("model=joined", "target_accuracy=0.5"), "task regression has no accuracy"),
        (("model=joined", "task=regresion"), "task=regresion: no such task"),
        (("model=joined", "task.weight=-1"), "task.weight=-1: must be at least 0"),
    ):
        wrong = commands.run(*FIXED, "dataset=angles", *words, SCALEGUIDE_CACHE=cache)
        assert wrong.returncode == 2
        assert sentence in wrong.stderr


@pytest.mark.parametrize("group", ["strategy", "model", "dataset", "task"])
def test_src_does_not_name_what_is_chosen_from_outside(group: str) -> None:
    names = [path.stem for path in (Path(PLUGIN) / group).glob("*.yaml")]
    source = "".join(path.read_text() for path in Path(PLUGIN).parents[2].glob("src/**/*.py"))
    assert names
    assert not [name for name in names if f'"{name}"' in source]
