"""The table of foreign architectures: a cut that is measured, a refusal, a library that isn't there."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from bench import architectures
from bench.architectures import CASES, Case
from src.config import ConfigError
from src.partition.torch import comparison
from src.partition.torch.graph import operations
from src.partition.torch.stage import Stage


@pytest.fixture(autouse=True)
def process_as_before() -> Iterator[None]:
    """A case sets up its process, which as a rule is its own."""
    threads = torch.get_num_threads()
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(threads)


def test_a_model_of_torchvision_is_cut_in_two_and_agrees() -> None:
    (number,) = [number for number, case in enumerate(CASES) if case.name == "squeezenet1_1"]
    found = architectures.answer(number)
    assert found["gap"] <= architectures.BOUND and found["share"] >= architectures.LEAST_SHARE
    row = architectures.row(CASES[number], found, [])
    assert row.startswith(f"| torchvision `squeezenet1_1` | {found['operations']} | `features.")


def test_stages_that_compute_something_else_have_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    (case,) = [case for case in CASES if case.name == "squeezenet1_1"]
    forward = Stage.forward

    def off(self: Stage, *received: Tensor) -> Tensor | tuple[Tensor, ...]:
        sent = forward(self, *received)
        return sent if isinstance(sent, Tensor) else tuple(tensor * (1 + 1e-6) for tensor in sent)

    monkeypatch.setattr(Stage, "forward", off)
    with pytest.raises(ConfigError, match="differs by"):
        architectures.cut_in_two(case)
    monkeypatch.setattr(comparison, "check", lambda *_, **__: None)
    assert architectures.cut_in_two(case)["gap"] > architectures.BOUND


@pytest.mark.skipif(importlib.util.find_spec("timm") is not None, reason="timm is installed")
def test_a_library_that_is_not_there_is_said() -> None:
    case = next(case for case in CASES if case.library == "timm")
    found = architectures.one(case)
    assert architectures.row(case, found, []) == (
        "| timm `resnet18` | not tried: timm isn't installed | | | | | |"
    )


def test_refusals_are_numbered_and_gaps_stand_out() -> None:
    notes: list[str] = []
    case = Case("timm", "net")
    refused = [{"refused": "the model can't be cut: a"}, {"refused": "b"}, {"refused": "b"}]
    rows = [architectures.row(case, found, notes) for found in refused]
    assert [row.split("|")[2].strip() for row in rows] == ["refused [1]", "refused [2]", "refused [2]"]
    assert notes == ["the model can't be cut: a", "b"]
    wrong = {"operations": 3, "at": "head", "share": 0.4, "gap": 1e-3, "drawn": None, "seconds": 1.6}
    assert architectures.row(case, wrong, notes).endswith("| `head` | 40% | **1e-03** | - | 2 s |")
    drawn = architectures.row(case, {**wrong, "gap": 0.0, "drawn": 1e-8}, notes)
    assert drawn.endswith("| 0e+00 | **1e-08** | 2 s |")
    assert "**killed**" in architectures.row(case, {"failed": "killed"}, notes)


def test_stages_of_one_process_draw_what_the_uncut_model_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 2)
    ).double()
    inputs = (torch.randn(4, 8, dtype=torch.float64),)
    graph = operations(model, inputs)
    assert all(architectures.gap_of(model, graph, inputs, boundary) == 0.0 for boundary in range(1, 6))
    forward = Stage.forward

    def drawing(self: Stage, *received: Tensor) -> Tensor | tuple[Tensor, ...]:
        torch.rand(())
        return forward(self, *received)

    monkeypatch.setattr(Stage, "forward", drawing)
    assert architectures.gap_of(model, graph, inputs, 3) > architectures.BOUND


def test_each_case_stands_once() -> None:
    titles = [(case.title, str(case.options), case.tied) for case in CASES]
    assert len(set(titles)) == len(titles) >= 51
