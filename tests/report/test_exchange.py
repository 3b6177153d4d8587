"""The page's table of what is exchanged by axis, for configurations that do so in several ways."""

from __future__ import annotations

import csv
import re

import pytest

from src.report import exchange, repeats
from src.report import runs as study_runs
from src.report.runs import labels
from src.report.tables import merged
from tests.report.conftest import Study

HEAD = "rank,axis,kind,ranks,exchanges,bytes,ring_bytes\n"


@pytest.fixture
def exchanging(empty_study: Study) -> Study:
    made = empty_study
    made.run("single", samples_per_second=100.0)
    ddp = made.run("ddp", "ddp", workers=2, samples_per_second=150.0)
    (ddp / "exchange.csv").write_text(
        f"{HEAD}0,data,all_reduce,2,3,4096,4096\n1,data,all_reduce,2,3,4096,4096\n"
    )
    hybrid = made.run("hybrid", "hybrid", workers=4, samples_per_second=180.0)
    (hybrid / "exchange.csv").write_text(
        f"{HEAD}0,data,all_reduce,2,1,1024,1024\n0,pipeline,point_to_point,2,4,2048,2048\n"
        "2,data,all_reduce,2,1,3072,3072\n2,pipeline,point_to_point,2,4,2048,2048\n"
    )
    return made


def test_a_row_is_the_rank_that_hands_over_most(exchanging: Study) -> None:
    runs = study_runs.load(exchanging.cells, exchanging.directory / "runs")
    rows = repeats.summarise(merged(runs, {}, labels(runs)))
    (view,) = exchange.views(rows)
    assert [cells[4:] for _, cells in view.rows] == [
        ["data", "all reduce", "2", "1", "3 KiB", "3 KiB"],
        ["pipeline", "point to point", "2", "4", "2 KiB", "2 KiB"],
    ]
    assert {row["cell"] for row in exchange.exchanges(rows)} == {"ddp", "hybrid"}
    assert exchange.views([row for row in rows if row["cell"] != "hybrid"]) == []


def test_the_page_and_the_tables_have_it(exchanging: Study) -> None:
    (table,) = re.findall(r'<table data-name="exchange by axis".*?</table>', exchanging.page(), re.S)
    assert "hybrid" in table and "ddp" not in table
    with (exchanging.directory / "tables/exchange.csv").open(newline="") as file:
        assert [row["bytes"] for row in csv.DictReader(file)] == ["4096.0", "3072.0", "2048.0"]
