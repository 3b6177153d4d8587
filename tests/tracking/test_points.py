"""Curves from the rows of a run's tables, on numbers worked by hand."""

from __future__ import annotations

from typing import Any

from src.tracking.points import Point, SystemCurves, TrainingCurves, final_figures


def step(number: int, loss: float, seconds: float) -> dict[str, Any]:
    return {"step": float(number), "loss": loss, "seconds": seconds}


def evaluation(step: int, accuracy: float) -> dict[str, Any]:
    row = {"loss": 0.5, "train_accuracy": None, "validation_seconds": 3.0}
    return row | {"step": float(step), "accuracy": accuracy, "train_loss": 1.0, "epoch": 1.0}


def test_the_time_of_a_step_counts_all_steps_and_evaluations_before_it() -> None:
    curves = TrainingCurves(100.0)
    points = list(
        curves.add([step(1, 4.0, 0.5), step(2, 3.0, 0.25), step(3, 2.0, 1.0)], [evaluation(2, 0.75)])
    )
    losses = [point for point in points if point.name == "train/loss"]
    assert losses == [
        Point("train/loss", 4.0, 1, 100.5),
        Point("train/loss", 3.0, 2, 100.75),
        Point("train/loss", 2.0, 3, 104.75),
    ]
    assert [point for point in points if point.name == "evaluation/accuracy"] == [
        Point("evaluation/accuracy", 0.75, 2, 103.75)
    ]
    # Rows that come later go on from there.
    (later, _) = curves.add([step(4, 1.0, 0.25)], [])
    assert later == Point("train/loss", 1.0, 4, 105.0)


def test_no_curve_stands_twice() -> None:
    points = list(TrainingCurves(0.0).add([step(1, 4.0, 0.5)], [evaluation(1, 0.75)]))
    assert sorted(point.name for point in points) == [
        "evaluation/accuracy",
        "evaluation/loss",
        "evaluation/seconds",
        "train/accuracy",
        "train/loss",
        "train/step_seconds",
    ]


def test_the_hardware_has_mlflows_names_and_each_ranks() -> None:
    row = {
        **{"rank": 1.0, "device": "gpu3", "utilization": 0.5, "memory_bytes": 2e9, "power_watts": 300.0},
        **{"network_sent_bytes": 4e6, "network_received_bytes": 0.0},
        **{"host_utilization": 0.25, "host_memory_bytes": 8e9},
        **{"disk_read_bytes": 3e6, "disk_written_bytes": None},
    }
    other = {**row, "rank": 0.0, "device": "cpu1", "power_watts": None}
    points = list(SystemCurves().add([{**each, "time": t} for t in (5.0, 6.0) for each in (row, other)]))
    known = {(p.name, p.step): p.value for p in points if p.value is not None}
    assert (
        known[("system/gpu_3_power_usage_watts", 0)]
        == known[("system/rank_1_gpu3_power_usage_watts", 0)]
        == 300
    )
    assert known[("system/gpu_3_memory_usage_megabytes", 1)] == 2000
    assert known[("system/rank_0_cpu1_utilization_percentage", 1)] == 50
    assert known[("system/rank_1_gpu3_disk_read_megabytes", 1)] == 3
    assert known[("system/cpu_utilization_percentage", 0)] == 25
    assert ("system/rank_0_cpu1_power_usage_watts", 0) not in known
    # One of a name and sample, however many ranks there are.
    assert len({(point.name, point.step) for point in points}) == len(points)
    assert {point.time for point in points if point.step == 1} == {6.0}


def test_settings_are_no_figures() -> None:
    metrics = {
        **{"batch": 64, "seed": 0, "workers": 2, "microbatches": 1, "epochs": 1, "shared_device": True},
        **{"accuracy": 0.5, "status": "ok", "energy_joules": None, "samples_per_second": 10},
    }
    assert final_figures(metrics, 7.0) == [Point("samples_per_second", 10.0, 0, 7.0)]
