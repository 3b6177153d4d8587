"""Ranks on a mesh compute what one device computes: ten float64 steps, to 1e-9, buffers included."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pytest

from tests.strategies import parity
from tests.strategies.meshes import HAS_TRANSFORMERS, LLAMA, copies, hybrid
from tests.strategies.parity import (
    ADAMW,
    CNN,
    GPT,
    MLP,
    NORMED,
    SAVED,
    TERMS,
    Case,
    Outcome,
    differences,
    gaps,
)

pytestmark = pytest.mark.slow

ENDS = ("model=custom", "model.path=tests.plugin.model.tied.build", "batch=16", *TERMS)
SINGLE = (
    Case("single-cnn", (*CNN, *TERMS)),
    Case("single-adamw", (*MLP, *ADAMW)),
    Case("single-mlp", MLP),
    Case("single-terms", (*MLP, *TERMS)),
    Case("single-gpt", GPT),
    Case("single-ends", ENDS),
    Case("rank-0-buffers", (*NORMED, "microbatches=4"), "buffers of the first half"),
)
KEPT = ("strategy=fsdp", "strategy.group_mb=0.1", "strategy.reshard=false")
# By the number of ranks. A case's name begins with its reference's.
MESHES = {
    2: (
        Case("single-cnn, copies", ("workers=2", *hybrid(), *CNN, *TERMS)),
        Case("single-cnn, stages", ("workers=2", *hybrid(pipeline=2), *CNN, *TERMS)),
    ),
    4: (
        Case("single-cnn, copies of stages", ("workers=4", *hybrid(pipeline=2), *CNN, *TERMS)),
        Case("single-cnn, copies of shards", ("workers=4", *hybrid(shard=2), *CNN, *TERMS)),
        Case("single-cnn, stages of shards", ("workers=4", *hybrid(pipeline=2, shard=2), *CNN, *TERMS)),
        Case("single-terms, copies of stages", ("workers=4", *hybrid(pipeline=2), *MLP, *TERMS, SAVED)),
        Case("single-terms, copies of shards", ("workers=4", *hybrid(shard=2), *MLP, *TERMS, SAVED)),
        Case("single-terms, copies of parts", ("workers=4", *hybrid(tensor=2), *MLP, *TERMS, SAVED)),
        Case("single-terms, parts", ("workers=4", "strategy=tensor_parallel", *MLP, *TERMS, SAVED)),
        Case("single-adamw, stages of shards", ("workers=4", *hybrid(pipeline=2, shard=2), *MLP, *ADAMW)),
        Case("rank-0-buffers, copies of stages", ("workers=4", *hybrid(pipeline=2), *NORMED)),
        Case("rank-0-buffers, stages of shards", ("workers=4", *hybrid(pipeline=2, shard=2), *NORMED)),
        Case("single-ends, tied", ("workers=4", *hybrid(pipeline=2), *ENDS, "strategy.tied=reduce")),
        Case("single-mlp, copies of parts", ("workers=4", *hybrid(tensor=2), *MLP)),
        Case("single-mlp, shards", ("workers=4", "strategy=fsdp", "strategy.group_mb=0.1", *MLP)),
        Case("single-gpt, copies of stages", ("workers=4", *hybrid(pipeline=2), *GPT)),
        Case("single-gpt, copies of parts", ("workers=4", *hybrid(tensor=2), *GPT)),
        Case("single-gpt, shards that are kept", ("workers=4", *KEPT, *GPT)),
    ),
    8: (
        Case("single-mlp, copies of 4 shards", ("workers=8", *hybrid(shard=4), *MLP)),
        Case("single-mlp, copies of stages of shards", ("workers=8", *hybrid(pipeline=2, shard=2), *MLP)),
        Case("single-mlp, 4 copies of stages", ("workers=8", *hybrid(pipeline=2), *MLP)),
    ),
}
if HAS_TRANSFORMERS:
    SINGLE += (Case("single-llama", LLAMA),)
    MESHES[4] += (Case("single-llama, copies of shards", ("workers=4", *hybrid(shard=2), *LLAMA)),)
RESUMED = tuple(
    Case(f"{kind} that {other} were", ("workers=4", *words, *MLP, *TERMS), resumes=f"single-terms, {other}")
    for kind, words, other in (
        ("copies of shards", hybrid(shard=2), "copies of stages"),
        ("copies of stages", hybrid(pipeline=2), "copies of shards"),
        ("stages of shards", hybrid(pipeline=2, shard=2), "copies of stages"),
        ("copies of parts", hybrid(tensor=2), "parts"),
        ("parts", ("strategy=tensor_parallel",), "copies of parts"),
    )
)
WRONG = tuple(
    Case(f"{mesh}, {change}", ("workers=4", *words, *MLP, *TERMS), change)
    for mesh, words, changes in (
        (
            "copies of stages",
            hybrid(pipeline=2),
            ("missing average", "gradient averaged twice", "own norm", "wrong shard"),
        ),
        (
            "copies of shards",
            hybrid(shard=2),
            ("missing average", "missing reduce over copies", "own norm", "swapped shard"),
        ),
        ("copies of parts", hybrid(tensor=2), ("missing average", "gradient averaged twice")),
    )
    for change in changes
)
JOBS = {
    "alone": (SINGLE, "single", 1),
    "2": (MESHES[2], "fsdp", 2),
    "4": ((*MESHES[4], *RESUMED, *WRONG), "fsdp", 4),
    "8": (MESHES[8], "fsdp", 8),
}
# Once the ranks are gone, one device goes on where they were.
AGAIN = Case("one device that parts were", (*MLP, *TERMS), resumes="../4/single-terms, parts")
LATER = {"again": ((AGAIN,), "single", 1)}


def train_cases(folder: Path) -> None:
    """Starting processes costs more than training, so each number of them starts once."""
    parity.train(JOBS, folder)
    parity.train(LATER, folder)


@pytest.fixture(scope="module")
def trained(cases: Path) -> dict[str, list[Outcome]]:
    return parity.outcomes(JOBS | LATER, cases)


def held(trained: dict[str, list[Outcome]], case: Case) -> list[Outcome]:
    return copies(trained[case.name], case.words, shared="encoder.weight" if "tied" in case.name else None)


@pytest.mark.parametrize("case", [*itertools.chain(*MESHES.values())], ids=lambda case: case.name)
def test_losses_gradients_parameters_and_buffers_are_those_of_one_device(
    trained: dict[str, list[Outcome]], case: Case
) -> None:
    expected = trained[case.name.partition(",")[0]][0]
    for copy in held(trained, case):
        # Copies keep their own statistics of BatchNorm; the first one's are evaluated.
        own = {"buffers"} if "rank-0-buffers" in case.name else set()
        assert set(differences(copy, expected)) <= own, gaps(copy, expected)
    assert not differences(held(trained, case)[0], expected)
    assert trained[case.name][0].evaluation == pytest.approx(expected.evaluation, rel=1e-5)


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case.name)
def test_the_parity_check_fails_for_a(trained: dict[str, list[Outcome]], case: Case) -> None:
    outcomes = trained[case.name]
    stages = 2 if "stages" in case.name else 1
    apart = len(outcomes) // stages
    found = {
        kind
        for copy in range(apart)
        for part in outcomes[copy::apart]
        for kind in _differing(part, trained["single-terms"][0])
    }
    assert {"losses", "parameters"} <= found


def _differing(part: Outcome, whole: Outcome) -> list[str]:
    """What differs of a stage from the same tensors of the whole model."""
    tensors = {name: whole.tensors[name] for name in part.tensors}
    return differences(part, dataclasses.replace(whole, tensors=tensors))


@pytest.mark.parametrize("case", [*RESUMED, AGAIN], ids=lambda case: case.name)
def test_a_checkpoint_of_one_mesh_goes_on_on_another(trained: dict[str, list[Outcome]], case: Case) -> None:
    whole = trained["single-terms"][0]
    expected = dataclasses.replace(whole, losses=whole.losses[5:])
    for copy in held(trained, case):
        assert not differences(copy, expected), gaps(copy, expected)


# In float64. A CNN's first stage has 520 + 25,050 parameters and sends 50 maps of 8x8 a sample; the second
# has 400,500 + 5,010; a copy sees 16 samples in two micro-batches. Rows of an MLP's 784 x 128 + 128 and
# 128 x 10 + 10 parameters divide among 4 ranks but for the last ten, which become twelve.
CNN_FIRST, CNN_LAST, MAPS = 8 * (520 + 25_050), 8 * (400_500 + 5_010), 8 * 16 * 50 * 8 * 8
MLP_BYTES, MLP_PADDED = 8 * (784 * 128 + 128 + 128 * 10 + 10), 8 * (784 * 128 + 128 + 128 * 12 + 12)
EXCHANGED: dict[str, list[dict[tuple[str, str], tuple[float, float]]]] = {
    # By two ranks with each part. A micro-batch's activations go one way, and their gradients the other.
    "single-cnn, copies of stages": [
        {("pipeline", "point_to_point"): (2, MAPS), ("data", "all_reduce"): (1, size)}
        for size in (CNN_FIRST, CNN_FIRST, CNN_LAST, CNN_LAST)
    ],
    # Three groups. Each micro-batch gathers them forward and backward; a half of their bytes is this rank's.
    # After the last one gradients are scattered, and each half averaged over copies.
    "single-cnn, copies of shards": [
        {
            ("shard", "all_gather"): (12, 4 * (CNN_FIRST + CNN_LAST) / 2),
            ("shard", "reduce_scatter"): (3, CNN_FIRST + CNN_LAST),
            ("data", "all_reduce"): (3, (CNN_FIRST + CNN_LAST) / 2),
        }
    ]
    * 4,
    # Stages are gathered once for all micro-batches.
    "single-cnn, stages of shards": [
        {
            ("shard", "all_gather"): (1, size / 2),
            ("pipeline", "point_to_point"): (2, MAPS),
            ("shard", "reduce_scatter"): (1, size),
        }
        for size in (CNN_FIRST, CNN_FIRST, CNN_LAST, CNN_LAST)
    ],
    # Two groups, gathered forward and backward.
    "single-mlp, shards": [
        {("shard", "all_gather"): (4, 2 * MLP_PADDED / 4), ("shard", "reduce_scatter"): (2, MLP_PADDED)}
    ]
    * 4,
    # The sum of 10 logits of 16 samples; images need no gradient. A rank has half of all but 10 biases.
    "single-mlp, copies of parts": [
        {
            ("tensor", "all_reduce"): (2, 8 * 16 * 10),
            ("data", "all_reduce"): (1, (MLP_BYTES - 80) / 2 + 80),
        }
    ]
    * 4,
}


@pytest.mark.parametrize("name", EXCHANGED)
def test_ranks_exchange_along_each_axis_what_is_worked_out_by_hand(
    trained: dict[str, list[Outcome]], name: str
) -> None:
    assert [outcome.exchanges for outcome in trained[name]] == EXCHANGED[name]
