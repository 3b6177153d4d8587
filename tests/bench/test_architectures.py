"""The table of foreign architectures: a cut that is measured, a refusal, a library that isn't there."""

from __future__ import annotations

import importlib.util

import pytest

from bench import architectures
from bench.architectures import CASES, Case


def test_a_model_of_torchvision_is_cut_in_two_and_agrees() -> None:
    (number,) = [number for number, case in enumerate(CASES) if case.name == "squeezenet1_1"]
    found = architectures.answer(number)
    assert found["gap"] <= architectures.BOUND and found["share"] >= architectures.LEAST_SHARE
    row = architectures.row(CASES[number], found, [])
    assert row.startswith(f"| torchvision `squeezenet1_1` | {found['operations']} | `features.")


@pytest.mark.skipif(importlib.util.find_spec("timm") is not None, reason="timm is installed")
def test_a_library_that_is_not_there_is_said() -> None:
    case = next(case for case in CASES if case.library == "timm")
    found = architectures.one(case)
    assert architectures.row(case, found, []) == (
        "| timm `resnet18` | not tried: timm isn't installed | | | |"
    )


def test_refusals_are_numbered_and_gaps_stand_out() -> None:
    notes: list[str] = []
    case = Case("timm", "net")
    refused = [{"refused": "the model can't be cut: a"}, {"refused": "b"}, {"refused": "b"}]
    rows = [architectures.row(case, found, notes) for found in refused]
    assert [row.split("|")[2].strip() for row in rows] == ["refused [1]", "refused [2]", "refused [2]"]
    assert notes == ["the model can't be cut: a", "b"]
    wrong = {"operations": 3, "at": "head", "share": 0.4, "gap": 1e-3}
    assert architectures.row(case, wrong, notes).endswith("| `head` | 40% | **1e-03** |")
    assert "**killed**" in architectures.row(case, {"failed": "killed"}, notes)


def test_each_case_stands_once() -> None:
    titles = [(case.title, str(case.options)) for case in CASES]
    assert len(set(titles)) == len(titles) >= 45
