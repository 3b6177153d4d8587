"""A model that is cut computes what one device computes: ten float64 steps, to 1e-9, buffers included.

The reference is `single` with as many micro-batches: BatchNorm's statistics are a micro-batch's.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.strategies import parity
from tests.strategies.parity import (
    ADAMW,
    GPT,
    NORMED,
    TERMS,
    Case,
    Outcome,
    differences,
    gaps,
    joined,
)

pytestmark = pytest.mark.slow

# Few values a BatchNorm and a high rate would grow rounding errors a thousandfold a step: MobileNetV2 ends
# on 2x2 pixels with this stem, on one without it.
COMMON = ("optimizer.lr=0.001",)
MODELS = {
    "resnet18": ("model=resnet18", "batch=16"),
    "mobilenet_v2": ("model=mobilenet_v2", "model.dropout=0", "model.stem=small", "batch=8"),
    "unet": ("model=unet", "model.width=4", "batch=16"),
    "vit": ("model=vit", "model.layers=2", "model.width=16", "model.patch=7", "batch=16"),
    "gpt": GPT,
}
# A schedule, what it computes again and the number of micro-batches are no matter of the model: one has all
# pairs of these, each other one of each.
ALL_PAIRS = "unet"
OTHERS = {("gpipe", "none"): ("resnet18", "gpt"), ("1f1b", "full"): ("mobilenet_v2", "vit")}
SPLIT_WHOLE = ("resnet18", "vit")
SINGLE = tuple(
    Case(f"single-{name}-m{m}", (*words, *COMMON, f"microbatches={m}"))
    for name, words in MODELS.items()
    for m in (1, 4)
    if m == 4 or name in (ALL_PAIRS, *SPLIT_WHOLE)
)
PIPELINE = tuple(
    Case(
        f"pipeline-{name}-{schedule}-{recompute}",
        (
            "strategy=pipeline",
            "workers=2",
            *words,
            *COMMON,
            "microbatches=4",
            *(
                "strategy.partition=size",
                f"strategy.schedule={schedule}",
                f"strategy.recompute={recompute}",
            ),
        ),
    )
    for name, words in MODELS.items()
    for schedule in ("gpipe", "1f1b")
    for recompute in ("none", "except_last", "full")
    if name == ALL_PAIRS or name in OTHERS.get((schedule, recompute), ())
)
SPLIT = tuple(
    Case(
        f"model_split-{name}-m{m}",
        ("strategy=model_split", "workers=2", *words, *COMMON, f"microbatches={m}"),
    )
    for name, words in MODELS.items()
    for m in (1, 4)
    if name == ALL_PAIRS or (name != "mobilenet_v2" and (m == 1) == (name in SPLIT_WHOLE))
)
WRONG = tuple(
    Case(
        f"wrong-{change.replace(' ', '-')}",
        (
            "strategy=pipeline",
            "workers=2",
            *MODELS["unet"],
            *COMMON,
            "microbatches=4",
            "strategy.recompute=full",
            "strategy.partition=layers",
        ),
        change,
    )
    for change in ("stale weight", "stale gradient", "recomputation that moves buffers")
)
# The block's input passes stages that don't read it.
RESIDUAL = (*NORMED, "microbatches=4")
RELAY = ("strategy=pipeline", *RESIDUAL)
THREE = (
    Case(
        "relay-3",
        (*RELAY, "workers=3", "strategy.partition=[3.bn1,3.bn2]"),
    ),
    Case("no-parameters-3", (*RELAY, "workers=3", "strategy.partition=[3.relu,3.second]")),
)
FOUR = (
    Case(
        "relay-4",
        (
            *RELAY,
            "workers=4",
            "strategy.schedule=1f1b",
            "strategy.partition=[3.bn1,3.second,3.bn2]",
        ),
    ),
)
# One weight at both ends, in all that an update may be of; the stage between doesn't hold it.
ENDS = ("model=custom", "model.path=tests.plugin.model.tied.build", "batch=16", "microbatches=4", *TERMS)
APART = (*ENDS, "strategy.tied=reduce")
TIED_GPT = (*GPT, "model.tied=true", "microbatches=4")
TIED_SINGLE = (
    Case("single-ends", ENDS),
    Case("single-ends-adamw", (*ENDS, *ADAMW)),
    Case("single-tied-gpt", TIED_GPT),
)
TIED = {
    2: (
        Case(
            "ends-pipeline",
            ("strategy=pipeline", "workers=2", *APART, "strategy.schedule=1f1b", "strategy.partition=layers"),
        ),
        Case(
            "pipeline-tied-gpt",
            (
                "strategy=pipeline",
                "workers=2",
                *TIED_GPT,
                "strategy.tied=reduce",
                "strategy.partition=[layers.1]",
            ),
        ),
        Case("ends-model_split", ("strategy=model_split", "workers=2", *APART)),
        Case("ends-missing-sum", ("strategy=model_split", "workers=2", *APART), "tied weights apart"),
    ),
    3: (
        Case("ends-3", ("strategy=pipeline", "workers=3", *APART, "strategy.partition=[middle,decoder]")),
        Case(
            "ends-3-adamw",
            ("strategy=pipeline", "workers=3", *APART, *ADAMW, "strategy.partition=[middle,decoder]"),
        ),
    ),
}
TIED_TO = {"ends-3-adamw": "single-ends-adamw", "pipeline-tied-gpt": "single-tied-gpt"}
JOBS = {
    "1": ((*SINGLE, *TIED_SINGLE, Case("single-residual", RESIDUAL)), "single", 1),
    "2": ((*PIPELINE, *SPLIT, *WRONG, *TIED[2]), "fsdp", 2),
    "3": ((*THREE, *TIED[3]), "fsdp", 3),
    "4": (FOUR, "fsdp", 4),
}


def train_cases(folder: Path) -> None:
    """Starting processes costs more than training, so each world size starts once."""
    parity.train(JOBS, folder)


@pytest.fixture(scope="module")
def trained(cases: Path) -> dict[str, list[Outcome]]:
    return parity.outcomes(JOBS, cases)


def reference(trained: dict[str, list[Outcome]], case: Case) -> Outcome:
    if RESIDUAL[1] in case.words:
        return trained["single-residual"][0]
    model = next(name for name, words in MODELS.items() if words[0] in case.words)
    m = 4 if "microbatches=4" in case.words else 1
    return trained[f"single-{model}-m{m}"][0]


@pytest.mark.parametrize("case", [*PIPELINE, *SPLIT, *THREE, *FOUR], ids=lambda case: case.name)
def test_losses_gradients_parameters_and_buffers_are_those_of_single(
    trained: dict[str, list[Outcome]], case: Case
) -> None:
    whole_model, expected = joined(trained[case.name]), reference(trained, case)
    assert not differences(whole_model, expected), gaps(whole_model, expected)
    # Scored in fp32; every test sample once, whoever scores it.
    assert whole_model.evaluation == pytest.approx(expected.evaluation, rel=1e-5)


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.name)
def test_the_parity_check_fails_for_a(trained: dict[str, list[Outcome]], case: Case) -> None:
    differing = differences(joined(trained[case.name]), reference(trained, case))
    if case.change == "recomputation that moves buffers":
        # BatchNorm doesn't read its running statistics while it trains.
        assert differing == ["buffers"]
    else:
        assert {"losses", "parameters"} <= set(differing)


@pytest.mark.parametrize(
    "case", [case for of_world in TIED.values() for case in of_world], ids=lambda c: c.name
)
def test_a_weight_on_several_stages_is_that_of_single(trained: dict[str, list[Outcome]], case: Case) -> None:
    expected = trained[TIED_TO.get(case.name, "single-ends")][0]
    shared = "encoder.weight"
    if "gpt" in case.name:
        # It may have the name of either module.
        shared = "head.weight"
        tensors = {name.replace("embedding", "head"): value for name, value in expected.tensors.items()}
        expected = dataclasses.replace(expected, tensors=tensors)
    if case.change is not None:
        with pytest.raises(AssertionError, match="differs between its stages"):
            joined(trained[case.name], shared=shared)
        return
    whole_model = joined(trained[case.name], shared=shared)
    assert not differences(whole_model, expected), gaps(whole_model, expected)
    assert whole_model.evaluation == pytest.approx(expected.evaluation, rel=1e-5)


def test_every_stage_held_something(trained: dict[str, list[Outcome]]) -> None:
    assert all(outcome.vector("parameters").size for outcome in trained["relay-4"])
    # Every tensor of the reference is on some stage.
    whole_model, expected = joined(trained["relay-3"]), trained["single-residual"][0]
    assert whole_model.tensors.keys() == expected.tensors.keys()
