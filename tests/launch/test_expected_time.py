"""How long a sweep takes is said before it starts: hand-worked limits, and earlier runs' times."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from src.config import Config
from src.launch import expected_time
from tests.support import config


@pytest.fixture
def run(tmp_path: Path) -> Config:
    """Two epochs of five minutes at most, and ten minutes for all else: 20 minutes."""
    return config("epochs=2", "max_minutes=5", f"out={tmp_path}/now")


def ended(folder: Path, run: Config, **changed: Any) -> None:
    """An earlier run of 30 s, of which it trained one epoch for 10 s."""
    folder.mkdir()
    metrics = {
        "status": "ok", "strategy": "single", "model": "cnn", "dataset": "mnist", "data_source": "original",
        "hardware": "local", "workers": 1, "batch": run.batch, "epochs": 1.0, "train_seconds": 10.0,
        "total_seconds": 30.0, **changed,
    }  # fmt: skip
    (folder / "metrics.json").write_text(json.dumps(metrics))
    (folder / "config.yaml").write_text(yaml.safe_dump(dataclasses.asdict(run)))


def test_without_an_earlier_run_only_the_limit_is_known(run: Config) -> None:
    limit = "on their devices (max_minutes, hardware.grace_minutes)"
    assert expected_time.sentence([run]) == f"1 run: at most 20 min {limit}"
    probed = dataclasses.replace(run, hardware=dataclasses.replace(run.hardware, probe=True))
    repeated = dataclasses.replace(run, hardware=dataclasses.replace(run.hardware, repeat_disturbed=2))
    # 20, 20 + 10 and 3 x 20 minutes.
    assert expected_time.sentence([run, probed, repeated]) == f"3 runs: at most 1 h 50 min {limit}"


def test_a_job_has_the_limit_that_slurm_is_given(run: Config) -> None:
    hardware = dataclasses.replace(run.hardware, scheduler="slurm", time_limit=90)
    said = expected_time.sentence([dataclasses.replace(run, hardware=hardware)])
    assert said == "1 run: at most 1 h 30 min on their devices (hardware.time_limit)"


def test_an_earlier_run_says_what_it_is_about(tmp_path: Path, run: Config) -> None:
    ended(tmp_path / "earlier", run)
    # 20 s beside two epochs of 10 s.
    assert expected_time.about([run]) == [40.0]
    other = dataclasses.replace(run, workers=2)
    said = expected_time.sentence([run, other], taken=1)
    assert said.startswith(
        "1 of 3 were finished before, and are taken as they are; 2 runs: about 40 s for the 1 "
    )


def test_no_run_trains_longer_than_its_minutes(tmp_path: Path, run: Config) -> None:
    ended(tmp_path / "earlier", run, train_seconds=1000.0, total_seconds=1020.0)
    assert expected_time.about([run]) == [320.0]


def test_the_nearest_batch_counts_and_the_run_to_be_replaced_before_it(tmp_path: Path, run: Config) -> None:
    ended(tmp_path / "far", run, batch=8 * run.batch, total_seconds=110.0)
    ended(tmp_path / "near", run, batch=2 * run.batch, total_seconds=60.0)
    assert expected_time.about([run]) == [70.0]
    ended(tmp_path / "now", run, batch=16 * run.batch, total_seconds=80.0)
    assert expected_time.about([run]) == [90.0]


@pytest.mark.parametrize(
    "changed",
    [{"status": "failed"}, {"epochs": None}, {"model": "mlp"}, {"workers": 4}, {"batch": None}, {"batch": 0}],
)
def test_what_is_not_alike_says_nothing(tmp_path: Path, run: Config, changed: dict[str, Any]) -> None:
    ended(tmp_path / "earlier", run, **changed)
    assert expected_time.about([run]) == [None]


def test_another_number_of_samples_and_files_of_others_say_nothing(tmp_path: Path, run: Config) -> None:
    ended(tmp_path / "earlier", dataclasses.replace(run, dataset={**run.dataset, "limit": 64}))
    ended(tmp_path / "broken", run)
    (tmp_path / "broken/config.yaml").write_text("- nothing")
    (tmp_path / "file").mkdir()
    (tmp_path / "file/metrics.json").write_text("3")
    assert expected_time.about([run]) == [None]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 s"), (59.0, "59 s"), (61, "2 min"), (3540, "59 min"), (3600, "1 h"), (11100, "3 h 5 min")],
)
def test_times_are_rounded_up(seconds: float, words: str) -> None:
    assert expected_time.in_words(seconds) == words
