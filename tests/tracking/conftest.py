"""Stores of the tests' own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient

from src.tracking.sweep import SWEEP


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An sqlite store without runs, to be copied; making its tables takes seconds."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An own working directory and store, and no variable left in the tests' environment."""
    before = dict(os.environ)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.delenv(SWEEP, raising=False)
    yield
    for name in set(os.environ) - set(before):
        del os.environ[name]


@pytest.fixture
def store(empty_store: Path, tmp_path: Path) -> MlflowClient:
    """The store of the test."""
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
