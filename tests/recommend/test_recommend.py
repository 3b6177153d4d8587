"""`python -m src.recommend` for devices that nobody has, as it is typed."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from src.recommend import __main__ as command
from tests.support import ROOT

PRICES = """
currency: EUR
date: 2026-11-29
source: made up
device_hour: {gpu: 2.0}
"""
CNN = ("model=cnn", "dataset=mnist", "hardware=a100_80gb")


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{folder}"}
    typed = [sys.executable, "-m", "src.recommend", *words]
    return subprocess.run(typed, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((), "say --measured, for a study's runs, --profile PROFILE model=..., for this machine, or"),
        (("model=cnn",), "say --measured, for a study's runs"),
        (("hardware=a100", "model=cnn"), "hardware=a100: nobody has described it"),
        (
            (*CNN, "aim=accuracy"),
            "aim=accuracy: isn't predicted; throughput, time_to_accuracy, memory, energy, cost are",
        ),
        ((*CNN, "aim=speed"), "aim=speed"),
        ((*CNN, "aim=cost"), "aim=cost: needs what a device costs: prices=FILE"),
        ((*CNN, "limit.cost=5"), "limit.cost=5: needs what a device costs: prices=FILE"),
        ((*CNN, "limit.hours=-1"), "limit.hours=-1"),
        ((*CNN, "limit.cost=much", "prices=prices.yaml"), "limit.cost=much"),
        ((*CNN, "prices=cpu.yaml"), "prices: no price of a100_80gb, or of gpu; there are prices of cpu"),
        ((*CNN, "strategy=mpi"), "strategy=mpi: can't be looked at before it runs; single, ddp"),
        ((*CNN, "strategy.tied=reduce"), "strategy.tied=reduce: options of strategies are chosen here"),
        ((*CNN, "batch=65536"), "batch=65536: the dataset has 60000 samples"),
        ((*CNN, "devices=2..8", "strategy=single"), "strategy=single: is one device, which devices leaves"),
        ((*CNN, "microbatches=3"), "microbatches=3: doesn't divide batch=64"),
        ((*CNN, "batch=0"), "batch=0: must be a whole number from 1 on"),
        ((*CNN, "batch=64", "batch=128"), "batch=128: stands there twice"),
        ((*CNN, "workers=4"), "workers=4: say devices=8"),
        ((*CNN, "devices=64..2"), "devices=64..2"),
        ((*CNN, "model=cnnn"), "model=cnnn"),
    ],
)
def test_a_mistake_is_a_line(
    words: tuple[str, ...],
    line: str,
    mnist: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "prices.yaml").write_text(PRICES)
    (tmp_path / "cpu.yaml").write_text(PRICES.replace("gpu", "cpu"))
    monkeypatch.chdir(tmp_path)
    assert command.main(list(words)) == 2
    said = capsys.readouterr().err
    assert line in said and said.count("\n") == 1, said


@pytest.mark.slow
def test_a_model_on_devices_that_nobody_has(mnist: None, tmp_path: Path) -> None:
    (tmp_path / "prices.yaml").write_text(PRICES)
    words = (*CNN, "devices=1..16", "network=infiniband_hdr", "prices=prices.yaml")
    said = run(tmp_path, *words, "batch=256,32768", "--json")
    assert said.returncode == 0, said.stderr
    small, large, rest = json.loads(said.stdout)
    # A step of a few samples takes as long on one device, and one of many doesn't.
    assert small["chosen"]["strategy"] == "single" and small["chosen"]["devices"] == 1
    assert large["chosen"]["devices"] > 1
    every = [large["chosen"], *large["as_good"], *large["behind"]]
    assert {each["strategy"] for each in every} >= {
        "single",
        "ddp",
        "fsdp",
        "tensor_parallel",
        "pipeline",
        "hybrid",
    }
    for each in every:
        assert each["low"] < each["samples_per_second"] < each["high"]
        assert each["seconds"] == pytest.approx(sum(each["parts"].values()))
        # Two EUR for an hour of each device.
        assert each["cost"] == pytest.approx(2.0 * each["devices"] * each["hours"])
    assert any("can be cut into at most 10 stages" in reason for reason in rest["not_predicted"])
    ledger = list(csv.DictReader((tmp_path / "predictions.csv").open()))
    assert [row["command"] for row in ledger] == ["recommend", "recommend"]
    said = run(tmp_path, *words, "batch=32768", "limit.memory_gib=2.0001", "strategy=single,ddp,fsdp")
    assert said.returncode == 1
    assert "Nothing can be chosen." in said.stdout and "ways don't fit; of these" in said.stdout


SPARSE = """
from torch import nn


class Words(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.words = nn.Embedding(256, 8, sparse=True)
        self.head = nn.Linear(8, classes)

    def forward(self, images):
        return self.head(self.words((images.flatten(1) * 10).long().clamp(0, 255)).mean(1))


def build(classes, shape):
    return Words(classes)
"""


@pytest.mark.slow
def test_what_a_run_would_refuse_is_no_way(mnist: None, tmp_path: Path) -> None:
    (tmp_path / "sparse_words.py").write_text(SPARSE)
    words = ("model=custom", "model.path=sparse_words.build", "dataset=mnist", "hardware=a100_80gb")
    said = run(tmp_path, *words, "devices=1..4", "batch=64", "--json", "strategy=single,ddp,fsdp")
    assert said.returncode == 0, said.stderr
    answer, rest = json.loads(said.stdout)
    assert answer["chosen"]["strategy"] == "single"
    assert answer["as_good"] == answer["behind"] == []
    refused = [reason.partition(":")[0] for reason in rest["not_predicted"] if "is sparse" in reason]
    assert refused == ["fsdp", "ddp"]


@pytest.mark.slow
def test_stages_compute_again_where_they_would_not_fit(tmp_path: Path) -> None:
    words = ("model=gpt", "dataset=gcide", "dataset.source=generated", "hardware=v100_16gb", "devices=2")
    said = run(tmp_path, *words, "batch=512", "strategy=pipeline", "limit.memory_gib=2.18", "--json")
    assert said.returncode == 0, said.stderr
    answer, _ = json.loads(said.stdout)
    assert "computing again" in answer["chosen"]["name"]
    assert "strategy.recompute=full" in answer["chosen"]["command"]
    # Frameworks take two, and a prediction may be 6 % off: 0.17 GiB are left.
    assert answer["chosen"]["bytes"] < 0.17 * 2**30
