"""Stages whose layers ranks hold in parts, further instances: copies of them, and a model of transformers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.strategies import parity
from tests.strategies.parity import ADAMW, MLP, SAVED, Case, Outcome, differences, gaps, joined
from tests.strategies.test_mesh_parity import hybrid
from tests.strategies.test_tensor_parity import MODELS, SMALL_TERMS

pytestmark = pytest.mark.long

GPT = (*MODELS["gpt"], "model.tied=false", *SMALL_TERMS)
LLAMA = MODELS["llama"]
# A case's name begins with its reference's.
SINGLE = (
    Case("single-gpt", GPT),
    Case("single-llama", LLAMA),
    Case("single-vit", (*MODELS["vit"], *SMALL_TERMS, "batch=32")),
    Case("single-adamw", (*MLP, *ADAMW)),
)
FOUR = (
    Case(
        "single-llama, 1f1b", (*hybrid(pipeline=2, tensor=2), *LLAMA, "strategy.schedule=1f1b", "workers=4")
    ),
    Case("single-adamw, parts", (*hybrid(pipeline=2, tensor=2), *MLP, *ADAMW, "workers=4")),
)
EIGHT = (
    Case("single-gpt, copies", (*hybrid(pipeline=2, tensor=2), *GPT, SAVED, "workers=8")),
    Case("single-vit, four stages", (*hybrid(pipeline=4, tensor=2), *SINGLE[2].words, "workers=8")),
    Case(
        "single-gpt, four parts",
        (*hybrid(pipeline=2, tensor=4), *GPT, "workers=8"),
        resumes="single-gpt, copies",
    ),
)
JOBS = {"alone": (SINGLE, "single", 1), "4": (FOUR, "fsdp", 4), "8": (EIGHT, "fsdp", 8)}


def train_cases(folder: Path) -> None:
    """Starting processes costs more than training, so each number of them starts once."""
    parity.train(JOBS, folder)


@pytest.fixture(scope="module")
def trained(cases: Path) -> dict[str, list[Outcome]]:
    return parity.outcomes(JOBS, cases)


@pytest.mark.parametrize("case", [*FOUR, *EIGHT], ids=lambda case: case.name)
def test_losses_gradients_parameters_and_buffers_are_those_of_one_device(
    trained: dict[str, list[Outcome]], case: Case
) -> None:
    whole = trained[case.name.partition(",")[0]][0]
    outcomes = trained[case.name]
    stages = next(int(word[-1]) for word in case.words if word.startswith("strategy.pipeline="))
    apart = len(outcomes) // stages
    for place in range(apart):
        model = joined(outcomes[place::apart])
        # No stage has a buffer that the model doesn't read.
        held = {
            name: each
            for name, each in whole.tensors.items()
            if name in model.tensors or "buffers" not in name
        }
        losses = whole.losses[5:] if case.resumes else whole.losses
        expected = dataclasses.replace(whole, tensors=held, losses=losses)
        assert not differences(model, expected), gaps(model, expected)
    assert outcomes[0].evaluation == pytest.approx(whole.evaluation, rel=1e-5)
