"""A synchronous strategy computes what one device computes: ten float64 steps, to 1e-9.

And the comparison is worth something: it fails for each of the mistakes that it is there to find.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from src.models import adapt
from tests.prepared_data import load_arrays
from tests.strategies import parity
from tests.strategies.parity import (
    ADAMW,
    CNN,
    GPT,
    MLP,
    NORMED,
    SAVED,
    STEPS,
    TERMS,
    UNCLIPPED,
    Case,
    Outcome,
    differences,
    gaps,
    joined,
    rows,
)
from tests.support import config

# Test samples that a rank has (tests/strategies/parity_rank.py).
TESTED = 41
DDP = ("strategy=ddp", "workers=2")
# A change that is no mistake.
SPEEDS = "speeds of 1 and 3"
LOCAL = ("strategy=local_sgd", "workers=2")
SINGLE = (
    Case("single-cnn", CNN),
    Case("single-cnn-m2", (*CNN, "microbatches=2")),
    Case("single-mlp", MLP),
    Case("single-normed-m4", (*NORMED, "microbatches=4")),
    Case("rank-0-buffers", (*NORMED, "microbatches=4"), "buffers of the first half"),
    Case("union-m2", (*NORMED, "microbatches=2"), "union of two ranks"),
    Case("single-terms", (*CNN, *TERMS, SAVED)),
    Case("single-terms-resumed", (*CNN, *TERMS), resumes="single-terms"),
    Case("single-unclipped", (*CNN, *UNCLIPPED)),
    Case("single-adamw", (*CNN, *ADAMW)),
    Case("single-gpt", GPT),
)
PAIR = (
    Case("ddp-cnn", (*DDP, *CNN, "strategy.all_reduce=shared_memory")),
    Case("ddp-cnn-backend", (*DDP, *CNN, "strategy.all_reduce=backend")),
    Case("ddp-cnn-small-buckets", (*DDP, *CNN, "strategy.bucket_mb=0.2")),
    Case("ddp-cnn-m2", (*DDP, *CNN, "microbatches=2")),
    Case("ddp-mlp", (*DDP, *MLP)),
    Case("ddp-normed-local-m2", (*DDP, *NORMED, "microbatches=2")),
    Case("ddp-cnn-shares", (*DDP, *CNN, "batch_shares=[20,12]")),
    Case("ddp-cnn-shares-m2", (*DDP, *CNN, "batch_shares=[25,7]", "microbatches=2")),
    Case("ddp-cnn-shares-that-change", (*DDP, *CNN, "batch_shares=auto"), SPEEDS),
    # A mean of steps from one place is the step by the mean.
    Case("local-sgd-cnn-each-step", (*LOCAL, *CNN, "strategy.sync_every=1")),
    Case("local-sgd-cnn-shares", (*LOCAL, *CNN, "strategy.sync_every=1", "batch_shares=[20,12]")),
    Case("local-sgd-cnn", (*LOCAL, *CNN, "strategy.sync_every=4")),
    Case("local-sgd-cnn-evaluated", (*LOCAL, *CNN, "strategy.sync_every=4", "evaluate_every=3")),
    Case("ddp-normed-sync-m2", (*DDP, *NORMED, "microbatches=2", "batchnorm=sync")),
    *(
        Case(f"ddp-{change.replace(' ', '-')}", (*DDP, *CNN), change)
        for change in ("wrong shard", "missing average", "stale weight", "stale gradient")
    ),
    Case("ddp-terms", (*DDP, *CNN, *TERMS, "microbatches=2", SAVED)),
    Case("ddp-adamw", (*DDP, *CNN, *ADAMW, "batch_shares=[20,12]")),
    Case("ddp-gpt", (*DDP, *GPT, "microbatches=2")),
    Case("local-sgd-unclipped", (*LOCAL, *CNN, *UNCLIPPED, "strategy.sync_every=1")),
)
# Of the CNN three groups, and of its first layers one.
FSDP = ("strategy=fsdp", "workers=2", "strategy.group_mb=0.3")
SHARDED = (
    Case("fsdp-cnn", (*FSDP, *CNN)),
    Case("fsdp-cnn-gathered-m2", (*FSDP, *CNN, "strategy.reshard=false", "microbatches=2")),
    Case("fsdp-mlp", (*FSDP, *MLP)),
    Case("fsdp-normed-local-m2", (*FSDP, *NORMED, "microbatches=2")),
    Case("fsdp-normed-sync-m2", (*FSDP, *NORMED, "microbatches=2", "batchnorm=sync")),
    Case("fsdp-cnn-shares", (*FSDP, *CNN, "batch_shares=[20,12]")),
    Case("fsdp-terms", (*FSDP, *CNN, *TERMS, SAVED)),
    Case("fsdp-terms-resumed", (*FSDP, *CNN, *TERMS), resumes="ddp-terms"),
    Case("fsdp-adamw", (*FSDP, *CNN, *ADAMW)),
    *(
        Case(f"fsdp-{change.replace(' ', '-')}", (*FSDP, *CNN, *TERMS), change)
        for change in ("wrong shard", "missing average", "stale weight", "swapped shard", "own norm")
    ),
)
PIPELINE = ("strategy=pipeline", "workers=2", "microbatches=4", "strategy.partition=layers")
SPLIT = ("strategy=model_split", "workers=2")
CUT = (
    Case("pipeline-terms", (*PIPELINE, *CNN, *TERMS)),
    Case("pipeline-terms-resumed", (*PIPELINE, *CNN, *TERMS), resumes="ddp-terms"),
    Case("split-terms-resumed", (*SPLIT, *CNN, *TERMS), resumes="fsdp-terms"),
    Case("split-adamw", (*SPLIT, *CNN, *ADAMW)),
    Case("pipeline-gpt", (*PIPELINE, *GPT)),
    Case("pipeline-own-norm", (*PIPELINE, *CNN, *TERMS), "own norm"),
)
MPI = ("strategy=mpi", "workers=2")
MPIEXEC = (
    Case("mpi-cnn", (*MPI, *CNN)),
    Case("mpi-cnn-small-buckets", (*MPI, *CNN, "strategy.bucket_mb=0.2")),
    Case("mpi-cnn-m2", (*MPI, *CNN, "microbatches=2")),
    Case("mpi-normed-local-m2", (*MPI, *NORMED, "microbatches=2")),
    Case("mpi-normed-sync-m2", (*MPI, *NORMED, "microbatches=2", "batchnorm=sync")),
    Case("mpi-cnn-shares", (*MPI, *CNN, "batch_shares=[7,25]")),
    Case("mpi-terms", (*MPI, *CNN, *TERMS)),
    Case("mpi-missing-average", (*MPI, *CNN), "missing average"),
)
JOBS = {
    "alone": (SINGLE, "ddp", 1),
    "pair": ((*PAIR, *SHARDED, *CUT), "ddp", 2),
    "mpiexec": (MPIEXEC, "mpi", 2),
}


def train_cases(folder: Path) -> None:
    """By one process, by two, and by two of an mpiexec: starting them costs more than training."""
    parity.train(JOBS, folder)


@pytest.fixture(scope="module")
def trained(cases: Path) -> dict[str, list[Outcome]]:
    return parity.outcomes(JOBS, cases)


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("ddp-cnn", "single-cnn"),
        ("ddp-cnn-backend", "single-cnn"),
        ("ddp-cnn-small-buckets", "single-cnn"),
        ("ddp-mlp", "single-mlp"),
        # Gradient accumulation: parts of a batch are the batch.
        ("single-cnn-m2", "single-cnn"),
        ("ddp-cnn-m2", "single-cnn"),
        ("ddp-cnn-backend", "ddp-cnn"),
        ("ddp-cnn-shares", "single-cnn"),
        ("ddp-cnn-shares-m2", "single-cnn"),
        ("ddp-cnn-shares-that-change", "single-cnn"),
        ("mpi-cnn-shares", "single-cnn"),
        ("mpi-cnn", "single-cnn"),
        ("mpi-cnn-small-buckets", "single-cnn"),
        ("mpi-cnn-m2", "single-cnn"),
        # BatchNorm: rank 0's micro-batches alone move the buffers, or all ranks' do.
        ("ddp-normed-local-m2", "rank-0-buffers"),
        ("ddp-normed-sync-m2", "union-m2"),
        ("mpi-normed-local-m2", "rank-0-buffers"),
        ("mpi-normed-sync-m2", "union-m2"),
        # Clipped is the averaged gradient, whose rate and decay are every rank's.
        ("ddp-terms", "single-terms"),
        ("mpi-terms", "single-terms"),
        ("fsdp-cnn", "single-cnn"),
        ("fsdp-cnn-gathered-m2", "single-cnn"),
        ("fsdp-mlp", "single-mlp"),
        ("fsdp-normed-local-m2", "rank-0-buffers"),
        ("fsdp-normed-sync-m2", "union-m2"),
        ("fsdp-cnn-shares", "single-cnn"),
        ("fsdp-terms", "single-terms"),
        ("fsdp-adamw", "single-adamw"),
        ("ddp-adamw", "single-adamw"),
        ("ddp-gpt", "single-gpt"),
    ],
)
def test_losses_gradients_parameters_and_buffers_are_those_of(
    trained: dict[str, list[Outcome]], name: str, reference: str
) -> None:
    expected = trained[reference][0]
    assert len(expected.losses) == STEPS
    for outcome in trained[name]:
        assert not differences(outcome, expected), gaps(outcome, expected)
        # Scored in fp32; every test sample once, whoever scores it.
        assert outcome.evaluation == pytest.approx(expected.evaluation, rel=1e-5)


def test_ranks_that_average_each_step_are_one_device_and_others_are_not(
    trained: dict[str, list[Outcome]],
) -> None:
    for name, same in (
        ("local-sgd-cnn-each-step", True),
        ("local-sgd-cnn-shares", True),
        ("local-sgd-cnn", False),
        ("local-sgd-unclipped", True),
    ):
        first, second = trained[name]
        # Ten steps don't end with an average of every fourth.
        assert np.array_equal(first.vector("parameters"), second.vector("parameters")) == same
        reference = "single-unclipped" if "unclipped" in name else "single-cnn"
        differing = differences(first, trained[reference][0])
        # Each rank's gradient is its own.
        assert set(differing) == ({"gradients"} if same else {"gradients", "losses", "parameters"})


def test_an_evaluation_scores_the_average_and_changes_no_training(trained: dict[str, list[Outcome]]) -> None:
    seldom, often = trained["local-sgd-cnn"], trained["local-sgd-cnn-evaluated"]
    for one, other in zip(seldom, often, strict=True):
        np.testing.assert_array_equal(one.losses, other.losses)
        np.testing.assert_array_equal(one.vector("parameters"), other.vector("parameters"))
    chosen = config(*CNN)
    arrays = load_arrays(chosen.dataset)
    model = adapt.build(chosen, classes=arrays.classes, shape=arrays.shape).double()
    average = {
        name: torch.from_numpy((seldom[0].tensors[key] + seldom[1].tensors[key]) / 2)
        for key in seldom[0].tensors
        for name in [key.removeprefix("parameters/")]
        if name != key
    }
    model.load_state_dict(average)
    tested = arrays.test.read(slice(TESTED))
    images = tested.inputs[0].transpose(0, 3, 1, 2) / 255
    logits = model(torch.from_numpy((images - arrays.mean[0]) / arrays.std[0]))
    loss = functional.cross_entropy(logits, torch.from_numpy(tested.targets[0]))
    assert [each[0].evaluation[0] for each in (seldom, often)] == pytest.approx([loss.item()] * 2, rel=1e-5)


def test_local_statistics_are_those_of_single_with_as_many_microbatches(
    trained: dict[str, list[Outcome]],
) -> None:
    # `single` moves its buffers on all four micro-batches, and these must therefore differ.
    for outcome in trained["ddp-normed-local-m2"]:
        assert differences(outcome, trained["single-normed-m4"][0]) == ["buffers"]


def test_local_and_synchronised_statistics_differ(trained: dict[str, list[Outcome]]) -> None:
    differing = differences(trained["ddp-normed-sync-m2"][0], trained["ddp-normed-local-m2"][0])
    assert sorted(differing) == ["buffers", "gradients", "losses", "parameters"]


@pytest.mark.parametrize("name", [case.name for case in SHARDED if case.change is not None])
def test_the_parity_check_fails_for_shards_with_a(trained: dict[str, list[Outcome]], name: str) -> None:
    for outcome in trained[name]:
        assert {"losses", "parameters"} <= set(differences(outcome, trained["single-terms"][0]))


@pytest.mark.parametrize(
    "name", [case.name for case in PAIR + MPIEXEC if case.change is None and "local_sgd" not in case.words[0]]
)
def test_both_ranks_end_with_the_same_bits(trained: dict[str, list[Outcome]], name: str) -> None:
    first, second = trained[name]
    for tensor, value in first.tensors.items():
        np.testing.assert_array_equal(value, second.tensors[tensor], err_msg=tensor)


@pytest.mark.parametrize("name", [case.name for case in PAIR + MPIEXEC if case.change not in (None, SPEEDS)])
def test_the_parity_check_fails_for_a(trained: dict[str, list[Outcome]], name: str) -> None:
    for outcome in trained[name]:
        differing = differences(outcome, trained["single-cnn"][0])
        assert {"losses", "parameters"} <= set(differing), gaps(outcome, trained["single-cnn"][0])


@pytest.mark.parametrize(
    ("name", "reference"),
    [("pipeline-terms", "single-terms"), ("split-adamw", "single-adamw"), ("pipeline-gpt", "single-gpt")],
)
def test_stages_are_the_model_and_clip_by_the_norm_of_all_of_them(
    trained: dict[str, list[Outcome]], name: str, reference: str
) -> None:
    whole, expected = joined(trained[name]), trained[reference][0]
    assert not differences(whole, expected), gaps(whole, expected)


def test_the_parity_check_fails_for_a_stage_s_own_norm(trained: dict[str, list[Outcome]]) -> None:
    differing = differences(joined(trained["pipeline-own-norm"]), trained["single-terms"][0])
    assert {"losses", "parameters"} <= set(differing)


def test_each_term_changes_what_is_trained(trained: dict[str, list[Outcome]]) -> None:
    for name in ("single-cnn", "single-unclipped", "single-adamw"):
        assert {"losses", "parameters"} <= set(differences(trained["single-terms"][0], trained[name][0]))


def test_a_resumed_training_ends_as_an_undisturbed_one(trained: dict[str, list[Outcome]]) -> None:
    whole = trained["single-terms"][0]
    (resumed,) = trained["single-terms-resumed"]
    # To the last bit: the rate, too, goes on where it was.
    assert resumed.losses.tolist() == whole.losses[5:].tolist()
    for tensor, value in whole.tensors.items():
        np.testing.assert_array_equal(resumed.tensors[tensor], value, err_msg=tensor)
    expected = dataclasses.replace(whole, losses=whole.losses[5:])
    for elsewhere in (
        joined(trained["pipeline-terms-resumed"]),
        joined(trained["split-terms-resumed"]),
        *trained["fsdp-terms-resumed"],
    ):
        assert not differences(elsewhere, expected), gaps(elsewhere, expected)


def test_shares_follow_speeds(cases: Path) -> None:
    recorded = [rows(cases / "pair/ddp-cnn-shares-that-change" / rank / "steps.csv") for rank in "01"]
    # Of 32 samples what speeds of 1 and 3 give.
    assert [[int(row["samples"]) for row in own][:2] for own in recorded] == [[16, 8], [16, 24]]
