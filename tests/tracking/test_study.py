"""Speed-up and parity come into MLflow with a study's tables."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from src.tracking.study import add_figures
from tests.tracking.recorded import history


@pytest.fixture
def run_id(store: MlflowClient) -> str:
    return str(store.create_run(store.create_experiment("scaleguide")).info.run_id)


def row(run_id: str | None, **figures: Any) -> dict[str, Any]:
    known = {"speedup": 1.5, "scaling_efficiency": 0.75, "parity_gap": 1e-6, "parity": "holds"}
    known |= {"verdict": "chosen", "cell": "a"}
    return {**known, "mlflow_run_id": run_id, **figures}


def test_a_studys_figures_are_added_once(store: MlflowClient, run_id: str) -> None:
    rows = [row(run_id), row(None), row("0" * 32)]
    assert add_figures(rows) == 1
    assert add_figures(rows) == 0
    assert history(store, run_id, "speedup") == [(0, 1.5)]
    run = store.get_run(run_id)
    assert (run.data.metrics["scaling_efficiency"], run.data.metrics["parity_gap"]) == (0.75, 1e-6)
    assert (run.data.tags["parity"], run.data.tags["verdict"]) == ("holds", "chosen")


def test_figures_of_another_aggregation_take_the_place_of_the_former(
    store: MlflowClient, run_id: str
) -> None:
    assert add_figures([row(run_id)]) == 1
    assert add_figures([row(run_id, speedup=1.25, parity="BROKEN")]) == 1
    run = store.get_run(run_id)
    assert (run.data.metrics["speedup"], run.data.tags["parity"]) == (1.25, "BROKEN")


def test_what_was_not_measured_is_not_added(store: MlflowClient, run_id: str) -> None:
    add_figures([row(run_id, speedup=None, parity_gap=float("nan"))])
    assert store.get_run(run_id).data.metrics == {"scaling_efficiency": 0.75}


def test_without_a_store_none_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert add_figures([row("0" * 32)]) == 0
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err == ""


def test_a_server_that_is_away_costs_one_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Nothing listens on the discard port.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    begun = time.monotonic()
    assert add_figures([row(f"{number:032}") for number in range(50)]) == 0
    assert capsys.readouterr().err.count("warning: ") == 1
    assert time.monotonic() - begun < 10
