"""A small study, written by hand, of which every ratio can be worked out in the head."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from src import aggregate

LOSSES = [2.30, 2.20, 2.10, 2.00, 1.90, 1.80, 1.70, 1.60, 1.50, 1.40, 1.30]
# What the YAML of strategies says that train on one device.
SINGLES: dict[str, dict[str, Any]] = {
    "single": {"reference": {}},
    "tf_single": {"reference": {"loop": "custom"}, "loop": "custom"},
}
# Cells that leave no measured run behind.
BAD = ("crashed", "odd<b>name", "torn")


class Study:
    """Writes runs as the results contract has them, and the `params.yaml` that declares them."""

    def __init__(self, folder: Path) -> None:
        self.params = folder / "params.yaml"
        self.directory = folder / "results"
        self.cells: dict[str, dict[str, Any]] = {}
        self.published: list[dict[str, Any]] = []
        self.findings: list[dict[str, Any]] = []
        # Many cells are written once, at the end.
        self.written = True

    def declare(self, cell: str, **keys: Any) -> Path:
        """Declares a cell and returns where its run would be."""
        typed = {k: v for k, v in keys.items() if k not in ("configuration", "repetition")}
        self.cells[cell] = {"overrides": " ".join(f"{k}={v}" for k, v in typed.items()), **keys}
        if self.written:
            self.write_params()
        return self.directory / "runs" / cell

    def write_params(self) -> None:
        """Writes `params.yaml` with the cells as they are declared by now."""
        self.written = True
        self.params.write_text(
            yaml.safe_dump(
                {
                    "study": {
                        "name": "small",
                        "cells": self.cells,
                        "published": self.published,
                        "findings": self.findings,
                    }
                },
                sort_keys=False,
            )
        )

    def run(
        self,
        cell: str,
        strategy: str = "single",
        *,
        framework: str = "torch",
        parity: str = "synchronous",
        options: dict[str, Any] | None = None,
        model: dict[str, Any] | None = None,
        workers: int = 1,
        batch: int = 128,
        scaling: str = "strong",
        microbatches: int = 1,
        precision: str = "fp32",
        probe: float = 10.0,
        losses: Sequence[float] = LOSSES,
        status: str = "ok",
        hardware: dict[str, Any] | None = None,
        environment: dict[str, Any] | None = None,
        declared: dict[str, Any] | None = None,
        seed: int = 0,
        optimizer: Mapping[str, Any] | None = None,
        **metrics: Any,
    ) -> Path:
        """Writes a whole run; what `metrics` doesn't name is `null`, as the contract asks."""
        model = {"name": "cnn", **(model or {})}
        folder = self.declare(
            cell, strategy=strategy, model=model["name"], dataset="mnist", workers=workers, **(declared or {})
        )
        folder.mkdir(parents=True)
        known = {
            "workers": workers,
            "batch": batch,
            "scaling": scaling,
            "microbatches": microbatches,
            "seed": seed,
        }
        config = {
            **known,
            "strategy": {
                "name": strategy,
                "framework": framework,
                "synchronous": parity == "synchronous",
                "parity": parity,
                "supports": {"shares_batch": strategy != "pipeline"},
                **SINGLES.get(strategy, {}),
                **(options or {}),
            },
            "model": model,
            "dataset": {"name": "mnist"},
            "hardware": {"name": "local", "device": "cpu", "cores_per_device": 1, **(hardware or {})},
            "epochs": 2,
            "max_minutes": 1 + workers,
            "precision": precision,
            "batchnorm": "local",
            "optimizer": {"name": "sgd", "lr": 0.01, "momentum": 0.0, **(optimizer or {})},
            "out": str(cell),
        }
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        empty = (
            "samples_per_second",
            "train_seconds",
            "accuracy",
            "loss",
            "bubble_fraction",
            "shared_device",
        )
        measured = {
            **dict.fromkeys(empty),
            **known,
            **{"status": status, "framework": framework, "strategy": strategy, "model": model["name"]},
            **{"dataset": "mnist", "data_source": "original", "epochs": 2},
            "hardware": config["hardware"]["name"],
            **metrics,
        }
        (folder / "metrics.json").write_text(json.dumps(measured))
        seen = {
            "versions": {"torch": "2.14.1"},
            "batch_statistics": bool(config["model"].get("batchnorm")),
            "hostname": "bench",
            "processors": {"model": "Example CPU", "count": 2},
            "probes": {"before": [probe] * workers, "after": [probe] * workers},
            "software": {
                "files": {"src/worker.py": "f00", f"src/strategies/{strategy}.py": "ba5"},
                "libraries": {"python": "3.13.1"},
            },
            **(environment or {}),
        }
        (folder / "environment.json").write_text(json.dumps(seen))
        steps = ["rank,epoch,step,seconds,samples,loss,staleness"]
        # The last rank first: readers may not rely on the order of rows.
        for rank in reversed(range(workers)):
            steps += [f"{rank},0,{i + 1},0.1,{batch // workers},{loss}," for i, loss in enumerate(losses)]
        (folder / "steps.csv").write_text("\n".join(steps) + "\n")
        (folder / "epochs.csv").write_text(
            "epoch,seconds,train_loss,train_accuracy,loss,accuracy,validation_seconds\n"
            "1,30,0.5,0.85,0.4,0.9,2\n2,30,0.3,0.91,0.25,0.94,2\n"
        )
        trace = ["time,rank,device,utilization,memory_bytes,power_watts"]
        for rank in range(workers):
            trace += [f"{100 + t},{rank},cpu:{rank},{0.5 + 0.1 * (t % 3)},1000," for t in range(20)]
        (folder / "trace.csv").write_text("\n".join(trace) + "\n")
        return folder

    def page(self) -> str:
        """The report page that `src.aggregate` writes of what is there."""
        aggregate.main(["--params", str(self.params), "--study-dir", str(self.directory)])
        return (self.directory / "report.html").read_text()


@pytest.fixture
def empty_study(tmp_path: Path) -> Study:
    """A study without cells, to write runs into."""
    return Study(tmp_path)


@pytest.fixture
def study(empty_study: Study) -> Study:
    """Runs of each kind: plain, parallel, weak, pipelined, shared, out of memory, failed, missing, torn."""
    made = empty_study
    near = [loss + 5e-5 for loss in LOSSES]
    off = [*LOSSES[:9], LOSSES[9] + 0.1, LOSSES[10]]
    made.run("single-b128", samples_per_second=1000.0, train_seconds=60.0, accuracy=0.94, loss=0.25)
    made.run("single-b256", batch=256, samples_per_second=1100.0, train_seconds=55.0, accuracy=0.92, loss=0.3)
    made.run("ddp-w1", "ddp", samples_per_second=900.0, train_seconds=66.0, accuracy=0.94, loss=0.25)
    made.run(
        "ddp-w2",
        "ddp",
        workers=2,
        losses=near,
        **{"samples_per_second": 1800.0, "train_seconds": 35.0, "accuracy": 0.94, "loss": 0.25},
        **{"step_seconds_median": 0.064, "utilization_mean": 0.97, "memory_peak_bytes": 3 * 2**20},
    )
    made.run("ddp-weak", "ddp", workers=2, scaling="weak", samples_per_second=2000.0, train_seconds=43.08)
    made.run(
        "pipeline-w2",
        "pipeline",
        workers=2,
        microbatches=4,
        options={"schedule": "gpipe", "virtual_stages": 1},
        probe=12.0,
        losses=off,
        **{"samples_per_second": 1200.0, "train_seconds": 50.0, "bubble_fraction": 0.27, "accuracy": 0.9},
    )
    made.run("single-m4", microbatches=4, samples_per_second=950.0, train_seconds=63.0)
    made.run("hogwild-w2", "hogwild", workers=2, parity="asynchronous", samples_per_second=1500.0)
    made.run("ddp-w4-shared", "ddp", workers=4, samples_per_second=1600.0, shared_device=True)
    made.run("big", batch=8192, status="out_of_memory")
    made.run("tf-single", "tf_single", framework="tensorflow", samples_per_second=500.0, train_seconds=120.0)
    made.run("tf-w2", "tf_mirrored", framework="tensorflow", workers=2, samples_per_second=750.0)
    crashed = made.run("crashed", "ddp", workers=2, batch=64, status="failed")
    (crashed / "logs").mkdir()
    (crashed / "logs" / "rank-1.log").write_text(
        "Traceback (most recent call last):\nRuntimeError: <script>alert(1)</script>\nbye\n"
    )
    made.declare("odd<b>name", strategy="ddp", model="cnn", dataset="mnist", workers=2)
    torn = made.declare("torn", strategy="single", model="cnn", dataset="mnist")
    torn.mkdir(parents=True)
    (torn / "metrics.json").write_text('{"status": "ok", "samp')
    (torn / "steps.csv").write_text("rank,epoch,step\n0,0")
    return made


@pytest.fixture
def unpictured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables alone: pages and pictures take seconds, and are looked at elsewhere."""
    monkeypatch.setattr("src.report.page.render", lambda *_: "")
    monkeypatch.setattr("src.report.figures.overview", lambda *_: None)
