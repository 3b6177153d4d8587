"""Every figure of a verdict is what the runs' files give, worked out without any of this project's code."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.report.conftest import Study
from tests.report.recompute import differences, verdict_differences
from tests.report.verdict.test_verdicts import repeated, scaled


@pytest.fixture
def written(empty_study: Study, unpictured: None) -> Study:
    """The tables of a study with something faster, something tied with it, and something slower."""
    known = {"bubble_fraction": 0.37, "memory_peak_bytes": 731 * 2**20, "accuracy": 0.9412}
    repeated(empty_study, "single", rates=scaled(1013))
    repeated(empty_study, "ddp", "ddp", workers=2, rates=scaled(1700, (1.0, 0.99, 1.01)), **known)
    repeated(empty_study, "mpi", "mpi", workers=2, rates=scaled(1690, (1.01, 0.99, 1.0)))
    repeated(empty_study, "pipeline", "pipeline", workers=2, rates=scaled(711), **known)
    repeated(
        empty_study, "both", "capacity", workers=2, scaling="weak", parity="none", rates=scaled(1931),
        options={"capacity": True},
    )  # fmt: skip
    empty_study.page()
    return empty_study


def test_figures_ratios_intervals_and_sentences_are_the_runs_own(written: Study) -> None:
    assert differences(written.directory) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda known: known["answers"][0]["configurations"][1].update(figure=1.0),
            "and the verdict has 1.0",
        ),
        (
            lambda known: known["answers"][0]["configurations"][3].update(interval=[0.5, 0.7]),
            "verdict has 0.5",
        ),
        (lambda known: known["sentences"][0].update(text="Use it: 2.71 times as fast."), "number 2.71"),
        (lambda known: known["sentences"][1].update(text="It takes 4 devices."), "the number 4"),
    ],
)
def test_a_figure_that_no_run_has_is_found(
    written: Study, change: Callable[[dict[str, Any]], None], says: str
) -> None:
    path = written.directory / "tables" / "verdict.json"
    found = json.loads(path.read_text())
    change(found[0])
    path.write_text(json.dumps(found))
    assert any(says in line for line in verdict_differences(written.directory))
