"""Steps of a model of one's own on described devices: the command, and how strategies stand to each other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from src.predict import __main__ as command
from tests.support import ROOT, typed

STAGES_OF_SHARDS = ("strategy=hybrid", "strategy.pipeline=2", "strategy.shard=2")
MODEL = ("model=gpt", "model.layers=2", "dataset=gcide", "dataset.source=generated", "optimizer.name=adamw")


def run(*words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "src.predict", *words]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_strategies_on_described_devices(tmp_path: Path) -> None:
    said = run(
        *MODEL, "hardware=p100", "network=ethernet_10g", "devices=1,2,16", "batch=256", "--json", cwd=tmp_path
    )
    assert said.returncode == 0, said.stderr
    found: dict[tuple[str, int], dict[str, Any]] = {
        (each["strategy"], each["devices"]): each for each in json.loads(said.stdout)
    }
    alone = found["single", 1]
    for row in found.values():
        if row["seconds"] is not None:
            assert row["low"] < row["seconds"] < row["high"]
            parts = sum(row[f"{part}_seconds"] for part in ("compute", "exchange", "bubble", "other"))
            assert parts == pytest.approx(row["seconds"])
    # Two devices of a node compute half of the samples each, and gradients cross a fast link.
    for strategy in ("ddp", "fsdp"):
        two, many = found[strategy, 2], found[strategy, 16]
        assert two["samples"] == 128 and many["samples"] == 16
        assert 0.4 < two["compute_seconds"] / alone["compute_seconds"] < 0.75
        # Between nodes they cross a slow one.
        assert many["exchange_seconds"] > 3 * two["exchange_seconds"]
    # A pipeline's stages do the same work, a part each, in smaller micro-batches, and wait for each other.
    pipeline = found["pipeline", 2]
    assert 0.4 < pipeline["compute_seconds"] / alone["compute_seconds"] < 1.2
    assert pipeline["bubble_seconds"] > 0 and pipeline["exchange_seconds"] > 0
    assert pipeline["bytes"] < alone["bytes"]
    # Each rank of a split layer has its part of the products.
    assert 0.4 < found["tensor_parallel", 2]["compute_seconds"] / alone["compute_seconds"] < 0.9
    mesh = ("strategy=hybrid", "strategy.pipeline=2")
    said = run(*MODEL, *mesh, "hardware=p100", "devices=2,4", "batch=256", "--json", cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    one, copies = json.loads(said.stdout)
    assert [one[key] for key in ("bytes", "seconds")] == [pipeline[key] for key in ("bytes", "seconds")]
    # Two copies of two stages have half of the samples each, which they send, and sum their gradients.
    assert copies["samples"] == one["samples"] / 2
    assert 0.4 < copies["compute_seconds"] / one["compute_seconds"] < 0.75
    assert copies["exchange_seconds"] > 0.5 * one["exchange_seconds"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["model=cnn"], "hardware=: name a data sheet"),
        (["model=cnn", "hardware=a100"], "hardware=a100: nobody has described it"),
        (["model=cnn", "hardware=k80", "network=wifi"], "network=wifi: nobody has described it"),
        (["model=cnn", "hardware=k80", "devices_per_node=0"], "devices_per_node=0: must be a whole number"),
        (["model=cnn", "hardware=k80", "strategy=mpi"], "strategy=mpi: can't be looked at before it runs"),
        (["model=cnn", "hardware=k80", "--out", "x.csv"], "--out: is of --rows"),
        (["model=cnn", "hardware=k80", "--what-if", "network=fast"], "network=fast"),
        (["--rows", "x.csv", "--json"], "--json: is of words"),
        (["model=cnn", "hardware=k80", "workers=2"], "workers=2: say devices=8"),
        (
            ["model=cnn", "hardware=k80", "devices=4", *STAGES_OF_SHARDS],
            "strategy.pipeline=2 strategy.shard=2: stages of shards or parts aren't looked at",
        ),
    ],
)
def test_a_mistake_is_a_line(words: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed(lambda: command.main(words)) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and line in said, said


def test_a_mistake_that_is_typed_is_a_line() -> None:
    said = run("model=cnn", "hardware=a100")
    assert said.returncode == 2 and said.stderr.count("\n") == 1, said.stderr
