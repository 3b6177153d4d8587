"""The page's table and picture of live tensors, of the rank that has most."""

from __future__ import annotations

import csv
import json
import re

import pytest

from src.measure.live_bytes import PARTS
from src.report import memory, repeats
from src.report import runs as study_runs
from src.report.runs import labels
from src.report.tables import merged
from tests.report.conftest import Study

KIB = 1024


def record(weights: int, activations: int, predicted: int | None) -> dict[str, object]:
    """Return what a rank has recorded of a step in which its activations come and go."""
    measured = dict.fromkeys(PARTS, 0) | {"weights": weights, "activations": activations}
    moments = [[0.0, weights, 0, 0, 0, 0, 0], [0.01, *measured.values()], [0.02, weights, 0, 0, 0, 0, 0]]
    known = None if predicted is None else measured | {"activations": predicted}
    return {"seconds": 0.03, "measured": measured, "predicted": known, "moments": moments}


@pytest.fixture
def followed(empty_study: Study) -> Study:
    made = empty_study
    made.run("single", samples_per_second=100.0)
    ddp = made.run("ddp", "ddp", workers=2, samples_per_second=150.0, step_seconds_median=0.02)
    ranks = {"0": record(4 * KIB, 2 * KIB, None), "1": record(4 * KIB, 4 * KIB, 6 * KIB)}
    (ddp / "live_tensors.json").write_text(json.dumps(ranks))
    return made


def test_a_row_is_the_rank_that_has_most(followed: Study) -> None:
    runs = study_runs.load(followed.cells, followed.directory / "runs")
    summed = repeats.summarise(merged(runs, {}, labels(runs)))
    (view,) = memory.views(summed)
    shown = [dict(zip(view.headings, cells, strict=True)) for _, cells in view.rows]
    assert [row["bytes"] for row in shown] == ["measured", "predicted"]
    assert [row["rank"] for row in shown] == ["1", "1"]
    assert [row["activations"] for row in shown] == ["4 KiB", "6 KiB"]
    assert [row["all"] for row in shown] == ["8 KiB", "10 KiB"]
    assert [row["off"] for row in shown] == ["-", "+25.0%"] and shown[0]["slower"] == "1.50"
    assert memory.views([row for row in summed if row["cell"] != "ddp"]) == []


def test_the_page_and_the_tables_have_it(followed: Study) -> None:
    page = followed.page()
    (table,) = re.findall(r'<table data-name="live tensors".*?</table>', page, re.S)
    assert "ddp" in table and "single" not in table
    assert "Live tensors over a step" in page and "most 0.0039062 MiB" in page
    with (followed.directory / "tables/memory.csv").open(newline="") as file:
        assert [float(row["total"]) for row in csv.DictReader(file)] == [8 * KIB, 10 * KIB]
