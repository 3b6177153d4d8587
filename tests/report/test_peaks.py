"""Utilisation over one peak for all runs of a study on like devices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from src.report import runs as study_runs
from src.report import tables
from tests.report.conftest import Study


def with_peak(folder: Path, flops: float, device: str = "CPU (1 core)", precision: str = "fp32") -> None:
    path = folder / "environment.json"
    peak = {"peak_flops": flops, "peak_device": device, "peak_precision": precision}
    path.write_text(json.dumps(json.loads(path.read_text()) | peak))


def utilizations(study: Study) -> dict[str, float | None]:
    rows = tables.utilization(study_runs.load(study.cells, study.directory / "runs"))
    return {row["cell"]: row["model_flops_utilization"] for row in rows}


def test_the_faster_run_ranks_first_though_the_peak_rose_between_two(empty_study: Study) -> None:
    figures = {"flops_per_sample": 1e7, "workers": 2}
    # 1e7 x 6,000 / (2 x 75e9) = 0.4 beside 1e7 x 7,000 / (2 x 100e9) = 0.35.
    slow = empty_study.run(
        "slow", "model_split", samples_per_second=6000.0, model_flops_utilization=0.4, **figures
    )
    fast = empty_study.run(
        "fast", "pipeline", samples_per_second=7000.0, model_flops_utilization=0.35, **figures
    )
    with_peak(slow, 75e9)
    with_peak(fast, 100e9)
    assert utilizations(empty_study) == {"slow": pytest.approx(0.3), "fast": pytest.approx(0.35)}


def test_other_precisions_and_devices_have_peaks_of_their_own(empty_study: Study) -> None:
    figures = {"flops_per_sample": 1e7, "samples_per_second": 5000.0}
    with_peak(empty_study.run("fp32", **figures), 1e11)
    with_peak(empty_study.run("bf16", **figures), 2e11, precision="bf16")
    with_peak(empty_study.run("two cores", **figures), 2e11, device="CPU (2 cores)")
    found = utilizations(empty_study)
    assert found == {"fp32": 0.5, "bf16": 0.25, "two cores": 0.25}


def test_an_older_run_keeps_its_own_figure(empty_study: Study) -> None:
    empty_study.run("old", flops_per_sample=1e7, samples_per_second=5.0, model_flops_utilization=0.7)
    assert utilizations(empty_study) == {"old": 0.7}
