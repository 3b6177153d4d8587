"""The trace of GPUs by a real NVML library, which the test compiles: two cards, errors now and then."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from src.measure.arithmetic import mean
from tests.support import ROOT

pytestmark = pytest.mark.timed

SOURCE = Path(__file__).with_name("nvml_stub.c")
SAMPLES = 30
# Samples both cards for two ranks, and for a third one that shares card 1; prints cards and rows.
CODE = f"""
import json, os, pathlib, sys, time
from src.machine import devices
from src.measure import environment
from src.measure.sampler import Sampler

found = devices.find("gpu", 1)
ranks = [(rank, os.getpid(), device) for rank, device in enumerate([*found, found[-1]])]
with Sampler(pathlib.Path(sys.argv[1]), 0.03) as sampler:
    sampler.follow(ranks)
    deadline = time.monotonic() + 20
    while len(sampler.rows) < {SAMPLES} * len(ranks) and time.monotonic() < deadline:
        time.sleep(0.01)
gpus = [(device.index, device.uuid) for device in found]
print(json.dumps({{"gpus": gpus, "rows": sampler.rows, "names": environment.gpu_names()}}))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the compiled library."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler, cc, to build the stub of NVML")
    folder = tmp_path_factory.mktemp("nvml")
    target = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(target), str(SOURCE)], check=True)
    return folder


def sampled(library: Path, folder: Path, **environment: str) -> tuple[dict[str, Any], str]:
    """What the code above printed, on standard output and standard error."""
    inherited = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
    completed = subprocess.run(
        [sys.executable, "-c", CODE, str(folder / "trace.csv")],
        cwd=ROOT,
        env={**inherited, "LD_LIBRARY_PATH": str(library), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout), completed.stderr


def values(rows: list[dict[str, Any]], rank: int, column: str) -> list[float]:
    return [row[column] for row in rows if row["rank"] == rank and row[column] is not None]


def test_both_cards_have_their_own_figures(library: Path, tmp_path: Path) -> None:
    printed, errors = sampled(library, tmp_path)
    rows = printed["rows"]
    assert printed["gpus"] == [[0, "GPU-11111111-aaaa"], [1, "GPU-22222222-bbbb"]]
    assert printed["names"] == ["Stub", "Stub"]
    for rank, watts in ((0, 100), (1, 250)):
        assert set(values(rows, rank, "utilization")) == {watts / 500}
        assert set(values(rows, rank, "memory_bytes")) == {watts * 10**6}
        # By the counter of energy, which ticks in milliseconds.
        assert mean(values(rows, rank, "power_watts")) == pytest.approx(watts, rel=0.05)
    # Ranks 1 and 2 share a card, whose power counts once.
    assert set(values(rows, 2, "memory_bytes")) == {250 * 10**6}
    assert values(rows, 2, "power_watts") == []
    assert errors == ""


def test_an_error_now_and_then_costs_one_figure_of_one_sample(library: Path, tmp_path: Path) -> None:
    printed, errors = sampled(library, tmp_path, FAILS_EVERY="7")
    rows = printed["rows"]
    assert len(rows) >= 3 * SAMPLES
    for rank, watts in ((0, 100), (1, 250)):
        for column, value in (("utilization", watts / 500), ("memory_bytes", watts * 10**6)):
            known = values(rows, rank, column)
            assert set(known) == {value}
            assert SAMPLES / 2 < len(known) < SAMPLES, column
        # What was used while the counter couldn't be read is in the next figure's mean.
        assert mean(values(rows, rank, "power_watts")) == pytest.approx(watts, rel=0.05)
    assert errors.count("Unknown Error") == 2, errors


def test_a_lost_card_leaves_the_other_ones_figures(library: Path, tmp_path: Path) -> None:
    printed, errors = sampled(library, tmp_path, LOST_AFTER="9")
    rows = printed["rows"]
    assert len(values(rows, 1, "utilization")) == 3
    assert len(values(rows, 0, "utilization")) >= SAMPLES
    assert errors.count("GPU is lost") == 1, errors


def test_a_card_is_found_by_its_uuid_where_fewer_are_visible(library: Path, tmp_path: Path) -> None:
    printed, _ = sampled(library, tmp_path, CUDA_VISIBLE_DEVICES="GPU-2222")
    assert printed["gpus"] == [[1, "GPU-22222222-bbbb"]]
    assert set(values(printed["rows"], 0, "memory_bytes")) == {250 * 10**6}
