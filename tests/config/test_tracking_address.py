"""What can't be the address of a store is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from src.config import ConfigError
from src.config.tracking_address import check_address, database_path
from tests.support import config


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("", "is empty"),
        ("htp://x", "did you mean http?"),
        ("http://", "give http://host:port"),
        ("http://host:port", "give http://host:port"),
        ("folder", "is no store that MLflow can keep runs in"),
        ("file:///data/mlruns", "is no store that MLflow can keep runs in"),
        ("sqlite:///folder", "is a folder"),
        ("sqlite:///", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("sqlite:///nowhere/mlflow.db", "nowhere is no folder that can be written to"),
        ("postgres://host/name", "did you mean postgresql?"),
    ],
)
def test_an_address_that_names_no_store_is_answered_with_a_sentence(
    uri: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError) as mistake:
        check_address(uri)
    text = str(mistake.value)
    assert text.startswith(f"MLFLOW_TRACKING_URI={uri}: ") and expected in text and "\n" not in text


def test_an_address_matters_where_runs_are_tracked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "htp://x")
    for backend in ("sqlite", "server"):
        with pytest.raises(ConfigError, match="MLFLOW_TRACKING_URI=htp://x: "):
            config(f"tracking.backend={backend}")
    config("tracking.backend=none")


@pytest.mark.parametrize(
    "uri",
    ["http://host:5000", "https://host/path", "sqlite:///own.db", "postgresql+psycopg2://u:p@host/name"],
)
def test_an_address_of_a_store_is_taken(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_address(uri)


def test_the_file_of_a_store_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert database_path("sqlite:///own.db?timeout=5") == tmp_path / "own.db"
    assert database_path("sqlite:////data/own.db") == Path("/data/own.db")
    assert database_path("http://host/own.db") is None
