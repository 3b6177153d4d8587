"""Where a step's time goes, from records worked by hand, and blank where they don't tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from src.report import runs as study_runs
from src.report.step_time import StepTime, step_time
from tests.report.conftest import Study

COLUMNS = "rank,steps,samples,seconds,busy_seconds,exchange_seconds"


def time_of(study: Study, rows: list[str], strategy: str = "ddp", **known: Any) -> StepTime | None:
    folder: Path = study.run("run", strategy, workers=len(rows) or 1, **known)
    (folder / "workers.csv").write_text("\n".join([COLUMNS, *rows]) + "\n")
    (run,) = study_runs.load(study.cells, study.directory / "runs")
    return step_time(run)


def test_the_parts_of_a_mean_step_add_up(empty_study: Study) -> None:
    # Of 40 s of both ranks' 200 steps 28 s were computed, 8 s exchanged, and 10 % waited for input.
    found = time_of(empty_study, ["0,100,6400,20,15,3", "1,100,6400,20,13,5"], input_wait_fraction=0.1)
    assert found == StepTime(pytest.approx(0.14), pytest.approx(0.04), None, pytest.approx(0.02), 0.0)


def test_a_stage_waits_for_its_neighbours(empty_study: Study) -> None:
    found = time_of(
        empty_study, ["0,100,1,20,8,12"], "pipeline", bubble_fraction=0.6, input_wait_fraction=0.0
    )
    assert found == StepTime(pytest.approx(0.08), None, pytest.approx(0.12), 0.0, 0.0)


def test_what_the_backend_took_is_blank_where_it_cant_be_told_from_computing(empty_study: Study) -> None:
    found = time_of(empty_study, ["0,100,6400,20,,", "1,100,6400,20,,"], input_wait_fraction=0.1)
    assert found == StepTime(None, None, None, pytest.approx(0.02), pytest.approx(0.18))


def test_one_rank_that_cant_tell_leaves_all_of_them_blank(empty_study: Study) -> None:
    found = time_of(empty_study, ["0,100,6400,20,15,5", "1,100,6400,20,,"], input_wait_fraction=0.0)
    assert found == StepTime(None, None, None, 0.0, pytest.approx(0.2))


@pytest.mark.parametrize("rows", [[], ["0,0,0,0,0,0"], ["0,100,1,,,"]])
def test_nothing_is_known_without_timed_steps(empty_study: Study, rows: list[str]) -> None:
    assert time_of(empty_study, rows) is None
