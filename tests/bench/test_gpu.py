"""The rehearsal for a GPU runs where little is installed, on the CPU if it is told to."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from bench import synthetic
from bench.plain_config import compose
from bench.power_meter import integrate
from tests.support import ROOT, config

HIDDEN = ("hydra", "omegaconf", "dvc", "mlflow", "tensorflow", "keras")
STEPS = 10


@pytest.fixture
def hidden(tmp_path: Path) -> dict[str, str]:
    """An environment in which some packages can't be imported, by whatever process."""
    for name in HIDDEN:
        (tmp_path / "hidden" / name).mkdir(parents=True)
        (tmp_path / "hidden" / name / "__init__.py").write_text(f"raise ImportError('{name} is hidden')")
    return {**os.environ, "PYTHONPATH": f"{tmp_path / 'hidden'}:{ROOT}", "CUDA_VISIBLE_DEVICES": ""}


def rehearse(folder: Path, environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench.gpu", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )


def test_without_a_gpu_it_says_so_in_a_line(tmp_path: Path, hidden: dict[str, str]) -> None:
    completed = rehearse(tmp_path, hidden)
    assert completed.returncode == 2
    assert completed.stderr.splitlines() == [
        "no NVIDIA GPU is found here; --device cpu runs the same steps on the CPU"
    ]
    assert not (tmp_path / "bench").exists()


@pytest.mark.slow
def test_every_step_passes_on_a_cpu(tmp_path: Path, hidden: dict[str, str]) -> None:
    completed = rehearse(tmp_path, hidden, "--device", "cpu")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    verdicts = json.loads((tmp_path / "bench/out/gpu/results.json").read_text())
    assert len(verdicts) == STEPS and all(verdict["passed"] for verdict in verdicts)
    assert completed.stdout.count("passed  ") == STEPS


def test_a_configuration_without_hydra_is_that_of_hydra() -> None:
    words = ("strategy=pipeline", "model=resnet18", "microbatches=4", "precision=bf16", "out=there")
    composed = config(*words, "strategy.compile=true")
    dataset = yaml.safe_load((ROOT / "conf/dataset/mnist.yaml").read_text())
    plain = compose(
        Path("there"),
        dataset,
        {"strategy": "pipeline", "model": "resnet18", "hardware": "local"},
        microbatches=4,
        precision="bf16",
        strategy={"compile": True},
        hardware={"device": "cpu", "share_devices": True},
        tracking={"backend": "none"},
    )
    assert dataclasses.asdict(plain) == dataclasses.asdict(composed)


def test_random_images_are_what_their_dataset_says() -> None:
    dataset = synthetic.dataset(8, 3, 20, 5)
    splits = synthetic.read(Path(), dataset["options"])
    shapes = [split.read(0, 99).inputs[0].shape for split in (splits.train, splits.test)]
    assert shapes == [(20, 8, 8, 3), (5, 8, 8, 3)]


def test_energy_is_power_over_time() -> None:
    readings = [(0.0, 100.0), (1.0, 200.0), (3.0, 400.0)]
    # Means since the reading before; trapezoids between moments.
    assert integrate(readings, means=True) == 200 + 800
    assert integrate(readings, means=False) == 150 + 600
