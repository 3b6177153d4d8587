"""A job of which a rank is killed goes on from its last checkpoint, and ends as if nothing had happened."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

Until = Callable[[Callable[[], object], float, str], float]
# Until a run trains, on a busy machine.
START = 120.0
PER_EPOCH, EPOCHS = 100, 2
WORDS = (
    "batch=32", f"dataset.limit={32 * PER_EPOCH}", f"epochs={EPOCHS}", "checkpoint_every=30",
    "checkpoint_keep=2",
    "dataset.test_limit=100", "tracking.backend=none", "max_minutes=30", "evaluate_every=40",
    "hardware.device=cpu", "hardware.share_devices=true",
)  # fmt: skip
SLOW = pytest.mark.slow
STRATEGIES = {
    # The dense network has dropout.
    "ddp": ("strategy=ddp", "workers=2", "model=mlp"),
    "mpi": ("strategy=mpi", "workers=2", "model=cnn"),
    # Where the cut is measured, two runs may be cut otherwise, and one cut rounds unlike another.
    "pipeline": ("strategy=pipeline", "workers=2", "model=mlp", "strategy.partition=layers"),
    "pipedream": ("strategy=pipedream", "workers=2", "model=mlp", "strategy.partition=layers"),
    "model_split": ("strategy=model_split", "workers=2", "model=cnn"),
    "fsdp": ("strategy=fsdp", "workers=2", "model=mlp", "strategy.group_mb=0.1"),
    "hybrid": (
        "strategy=hybrid",
        "workers=4",
        "strategy.shard=2",
        "strategy.pipeline=2",
        "model=mlp",
        "strategy.partition=layers",
    ),
    "tf_custom": ("strategy=tf_custom", "workers=2", "model=mlp"),
}


def rows(folder: Path, name: str, *columns: str) -> list[tuple[str, ...]]:
    with (folder / name).open(newline="") as file:
        return [tuple(row[column] for column in columns) for row in csv.DictReader(file)]


def arrays(value: Any, name: str = "") -> dict[str, Any]:
    """Everything that a checkpoint holds, by its path within it."""
    if isinstance(value, Mapping):
        return {k: v for key, part in value.items() for k, v in arrays(part, f"{name}/{key}").items()}
    return {name: value.numpy() if isinstance(value, torch.Tensor) else value}


def checkpoint(path: Path) -> dict[str, Any]:
    if path.suffix == ".npz":
        with np.load(path) as file:
            return dict(file)
    return arrays(torch.load(path, weights_only=True))


@pytest.mark.parametrize(
    "strategy",
    [
        "ddp",
        pytest.param("pipeline", marks=pytest.mark.long),
        pytest.param("pipedream", marks=SLOW),
        pytest.param("hybrid", marks=SLOW),
        pytest.param("fsdp", marks=pytest.mark.long),
        pytest.param("tf_custom", marks=SLOW),
        pytest.param("mpi", marks=pytest.mark.long),
        pytest.param("model_split", marks=pytest.mark.long),
    ],
)
def test_a_job_with_a_killed_rank_ends_as_an_undisturbed_one(
    commands, until: Until, mnist: None, strategy: str
) -> None:
    words = (*STRATEGIES[strategy], *WORDS)
    undisturbed = commands.run(*words, "out=undisturbed")
    assert undisturbed.returncode == 0, undisturbed.stderr

    process, killed = commands.start(*words, "out=killed"), commands.folder / "killed"
    number = 0 if strategy.startswith("tf_") else 1
    steps = killed / "ranks" / str(number) / "steps.csv"
    until(lambda: steps.exists() or process.poll() is not None, START, "the first step")
    victim = commands.rank(number)
    until(lambda: list(killed.glob("checkpoint.*")) or process.poll() is not None, START, "a checkpoint")
    victim.kill()
    assert process.wait(START) == 0, commands.output()
    assert (
        f"rank {number} was killed by SIGKILL; all are started again, from the last checkpoint (1 of 3"
        in (commands.output()[1])
    )
    assert commands.left() == []

    folders = commands.folder / "undisturbed", killed
    metrics, disturbed = (json.loads((folder / "metrics.json").read_text()) for folder in folders)
    assert (metrics["restarts"], disturbed["restarts"], disturbed["status"]) == (0, 1, "ok")
    assert metrics["payload_bytes"] == disturbed["payload_bytes"]
    steps_of = [rows(folder, "steps.csv", "rank", "epoch", "step", "samples", "loss") for folder in folders]
    # Each step of each rank once, with the same loss to the last digit.
    assert steps_of[0] == steps_of[1]
    ranks = 1 if number == 0 else metrics["workers"]
    assert len(set(steps_of[1])) == len(steps_of[1]) == PER_EPOCH * EPOCHS * ranks
    scores = "epoch", "step", "train_loss", "train_accuracy", "loss", "accuracy"
    evaluations = [rows(folder, "epochs.csv", *scores) for folder in folders]
    assert evaluations[0] == evaluations[1]
    kept = [sorted(path.name for path in folder.iterdir() if "checkpoint" in path.name) for folder in folders]
    assert kept[0] == kept[1]
    assert [Path(name).stem for name in kept[0]] == ["checkpoint-180", "checkpoint"]
    for name in kept[0]:
        whole, again = (checkpoint(folder / name) for folder in folders)
        assert whole.keys() == again.keys()
        assert [entry for entry in whole if not np.array_equal(whole[entry], again[entry])] == []


FAILING = (
    "model=custom", "model.path=tests.plugin.model.failing.Failing", "+model.options.batch=25",
    "dataset.limit=6400", "tracking.backend=none", "hardware.device=cpu", "out=run",
)  # fmt: skip


@pytest.mark.parametrize(
    ("every", "restarts"), [pytest.param("checkpoint_every=10", 1, marks=SLOW), ("checkpoint_every=null", 0)]
)
def test_an_error_that_comes_again_is_repeated_once_at_most(
    commands, mnist: None, every: str, restarts: int
) -> None:
    completed = commands.run(*FAILING, every)
    assert completed.returncode == 1
    assert completed.stderr.count("started again") == restarts
    assert "error: rank 0 failed with exit status 1; its log is run/logs/rank-0.log" in completed.stderr
    assert completed.stderr.splitlines()[-1] == "  | ValueError: batch 25 is too much"
    assert json.loads((commands.folder / "run" / "metrics.json").read_text())["restarts"] == restarts
    steps = [int(step) for (step,) in rows(commands.folder / "run", "steps.csv", "step")]
    assert steps == list(range(1, len(steps) + 1))
