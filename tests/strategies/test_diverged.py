"""A training that diverges leaves its last good checkpoint, and a run goes on from that."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from src.runtime.common import last_good

# The second loss is 1e20, and the third is none.
COMMON = (
    "model=mlp", "model.dropout=0", "batch=64", "dataset.limit=1280", "dataset.test_limit=200",
    "hardware.device=cpu", "hardware.share_devices=true", "tracking.backend=none",
)  # fmt: skip
SLOW = pytest.mark.slow
STRATEGIES = {
    "single": ("strategy=single",),
    "ddp": ("strategy=ddp", "workers=2"),
    "pipeline": ("strategy=pipeline", "workers=2", "microbatches=2"),
    "hogwild": ("strategy=hogwild", "workers=2"),
    "tf_single": ("strategy=tf_single",),
    "tf_single-fit": ("strategy=tf_single", "strategy.loop=fit"),
    "tf_mpi": ("strategy=tf_mpi", "workers=2"),
    "tf_parameter_server": ("strategy=tf_parameter_server", "workers=2"),
}
FURTHER = ("ddp", "tf_single-fit", "tf_mpi", "tf_parameter_server")


def floats(checkpoint: Path) -> Iterator[np.ndarray]:
    """Every tensor of a checkpoint that could be infinite."""
    if checkpoint.suffix == ".npz":
        with np.load(checkpoint) as file:
            yield from (value for value in file.values() if value.dtype.kind == "f")
        return
    whole = torch.load(checkpoint, weights_only=True)
    for part in (whole["model"], *whole["optimizer"]["state"].values()):
        yield from (value.numpy() for value in part.values())


def losses(folder: Path) -> list[float]:
    with (folder / "steps.csv").open(newline="") as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


@pytest.mark.parametrize(
    "strategy",
    [
        "single",
        "hogwild",
        *(pytest.param(name, marks=SLOW) for name in ("pipeline", "tf_single")),
        *(pytest.param(name, marks=pytest.mark.long) for name in FURTHER),
    ],
)
def test_what_a_diverged_run_leaves_is_finite_and_a_run_goes_on_from_it(
    commands, mnist: None, strategy: str
) -> None:
    words = (*STRATEGIES[strategy], *COMMON)
    completed = commands.run(*words, "out=bad", "checkpoint_every=1", "optimizer.lr=1e5")
    assert completed.returncode == 0, completed.stderr
    folder = commands.folder / "bad"
    assert json.loads((folder / "metrics.json").read_text())["status"] == "diverged"
    assert not all(math.isfinite(loss) for loss in losses(folder))
    (checkpoint,) = [path for path in folder.iterdir() if "checkpoint" in path.name]
    assert not checkpoint.name.startswith(".")
    assert all(np.isfinite(value).all() for value in floats(checkpoint))
    # A rate of nothing: the losses that follow are those of the checkpoint's state.
    completed = commands.run(*words, "out=good", f"resume={checkpoint}", "optimizer.lr=1e-38")
    assert completed.returncode == 0, completed.stderr
    # Interleaved steps of hogwild may stop where the parameters are finite still, and the next loss isn't.
    assert strategy == "hogwild" or math.isfinite(losses(commands.folder / "good")[0])


def write(path: Path, *texts: str, keep: int = 1) -> None:
    """Write checkpoints at `path`, one after the other, each ten steps after the one before."""
    for number, text in enumerate(texts):
        with last_good.newer(path, present=10 * number if number else None, keep=keep) as temporary:
            temporary.write_text(text)
        assert path.read_text() == text


def left(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.iterdir()}


def test_the_one_before_a_bad_one_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    write(path, "first", "second", "third")
    last_good.settle(path, good=False)
    assert left(tmp_path) == {"checkpoint.pt": "second"}


def test_a_good_one_stays_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    write(path, "first", "second")
    last_good.settle(path, good=True)
    assert left(tmp_path) == {"checkpoint.pt": "second"}


@pytest.mark.parametrize(
    ("good", "expected"),
    [
        (True, {"checkpoint.pt": "5", "checkpoint-40.pt": "4", "checkpoint-30.pt": "3"}),
        (False, {"checkpoint.pt": "4", "checkpoint-30.pt": "3", "checkpoint-20.pt": "2"}),
    ],
)
def test_the_last_good_ones_stay_and_no_more(tmp_path: Path, good: bool, expected: dict[str, str]) -> None:
    (tmp_path / "checkpoint-best.pt").write_text("the user's own")
    write(tmp_path / "checkpoint.pt", *"12345", keep=3)
    last_good.settle(tmp_path / "checkpoint.pt", good=good, keep=3)
    assert left(tmp_path) == {**expected, "checkpoint-best.pt": "the user's own"}


def test_one_that_was_kept_as_the_process_was_killed_is_kept_again(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    write(path, "first")
    # It has both names until the next one has taken its place.
    os.link(path, tmp_path / "checkpoint-10.pt")
    write(path, "again", "second")
    assert left(tmp_path) == {"checkpoint.pt": "second", "checkpoint-10.pt": "again"}


def test_a_bad_one_without_another_before_it_is_removed(tmp_path: Path) -> None:
    write(tmp_path / "checkpoint.pt", "first")
    last_good.settle(tmp_path / "checkpoint.pt", good=False)
    assert list(tmp_path.iterdir()) == []


def test_one_that_could_not_be_written_takes_no_good_ones_place(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    write(path, "first")
    with pytest.raises(OSError, match="full"), last_good.newer(path, present=10) as temporary:
        temporary.write_text("half")
        raise OSError("the disk is full")
    assert [file.read_text() for file in tmp_path.iterdir()] == ["first"]
