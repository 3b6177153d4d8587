"""A study as a frame: the tables' columns and units, and the same figures."""

from __future__ import annotations

import csv
from pathlib import Path

import pandas as pd
import pytest

from src.report import load
from tests.report.conftest import Study
from tests.report.verdict.test_verdicts import repeated, scaled


@pytest.fixture
def written(empty_study: Study, unpictured: None) -> Path:
    repeated(empty_study, "single", rates=scaled(1013))
    repeated(empty_study, "ddp", "ddp", workers=2, rates=scaled(1700))
    empty_study.page()
    return empty_study.directory


def test_its_figures_are_the_tables(written: Path) -> None:
    frame = load(written)
    with (written / "tables" / "scaling.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(frame["cell"]) == [row["cell"] for row in rows] == ["single", "ddp"]
    for key in ("samples_per_second", "speedup", "speedup_low", "speedup_high", "repetitions"):
        assert [str(value) for value in frame[key]] == [row[key] or "nan" for row in rows], key
    # What wasn't measured is missing.
    assert frame["energy_joules"].isna().all() and pd.isna(frame["speedup_low"][0])
    assert frame.attrs["study"] == "small"
    units = frame.attrs["units"]
    assert (units["samples_per_second"], units["memory_peak_bytes"], units["train_seconds"]) == (
        "samples/s",
        "B",
        "s",
    )
    assert "speedup" not in units and set(units) <= set(frame.columns)


def test_each_run_has_a_row_where_that_is_asked_for(written: Path) -> None:
    frame = load(str(written), per="run")
    assert list(frame["cell"]) == [f"{name}{end}" for name in ("single", "ddp") for end in ("", "-r2", "-r3")]


def test_a_folder_without_tables_is_read_by_its_runs(written: Path) -> None:
    (written / "tables" / "study.json").unlink()
    frame = load(written).set_index("cell")
    assert frame["repetitions"]["ddp"] == 3 and frame["speedup"]["ddp"] == pytest.approx(1700 / 1013)


def test_another_folder_and_another_row_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="has no runs/; a study's folder is results/<study>"):
        load(tmp_path)
    (tmp_path / "runs").mkdir()
    with pytest.raises(ValueError, match="must be configuration or run"):
        load(tmp_path, per="cell")
