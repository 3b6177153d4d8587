"""TensorFlow's synchronous strategies compute what `tf_single` computes: ten float64 steps, to 1e-9."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

import numpy as np
import pytest

from tests.strategies.parity import (
    ADAMW,
    CNN,
    LIMIT_SECONDS,
    MLP,
    SAVED,
    STEPS,
    TERMS,
    Case,
    Outcome,
    differences,
    gaps,
    read,
    write,
)
from tests.support import Ranks, ranks

# Its cases take three minutes beside nothing, and thrice that beside other tests on a busy machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

MODULE = "tests.strategies.tf_parity_rank"
# With BatchNorm and shortcuts; a twentieth of ResNet-18's time, which is mostly tracing.
RESNET = ("model=custom", "model.path=tests.plugin.model.keras_residual.build", "batch=16")
RESNET18 = ("model=resnet18", "batch=16", "optimizer.lr=0.001")
PAIR = ("workers=2",)
MIRRORED = ("strategy=tf_mirrored", *PAIR)
CUSTOM = ("strategy=tf_custom", *PAIR)
SPLIT = ("strategy=tf_model_split", *PAIR)
TOGETHER = "strategy.steps_per_execution=4"
# The first one makes the two devices.
ONE_PROCESS = (
    Case("mirrored-cnn", (*MIRRORED, *CNN, SAVED)),
    Case("mirrored-cnn-resumed", (*MIRRORED, *CNN)),
    Case("mirrored-cnn-together", (*MIRRORED, *CNN, TOGETHER)),
    Case("mirrored-cnn-hierarchical", (*MIRRORED, *CNN, "strategy.reduction=hierarchical")),
    Case("custom-cnn", (*CUSTOM, *CNN, SAVED)),
    Case("custom-cnn-resumed", (*CUSTOM, *CNN)),
    Case("custom-cnn-together", (*CUSTOM, *CNN, TOGETHER)),
    Case("custom-cnn-xla", (*CUSTOM, *CNN, "strategy.xla=true")),
    Case("custom-cnn-m2", (*CUSTOM, *CNN, "microbatches=2")),
    Case("custom-mlp", (*CUSTOM, *MLP)),
    Case("mirrored-resnet", (*MIRRORED, *RESNET)),
    Case("custom-resnet", (*CUSTOM, *RESNET)),
    *(
        Case(f"custom-{change.replace(' ', '-')}", (*CUSTOM, *CNN), change)
        for change in ("wrong shard", "missing sum", "stale weight")
    ),
    Case("split-cnn", (*SPLIT, *CNN, SAVED, "strategy.partition=size")),
    Case("split-cnn-resumed", (*SPLIT, *CNN, "strategy.partition=size")),
    Case("split-cnn-m2-together", (*SPLIT, *CNN, "microbatches=2", TOGETHER)),
    Case("split-resnet-m2", (*SPLIT, *RESNET, "microbatches=2", "strategy.partition=[10,17]")),
    Case("single-cnn", ("strategy=tf_single", *CNN, SAVED)),
    Case("single-cnn-resumed", ("strategy=tf_single", *CNN)),
    Case("single-cnn-m2", ("strategy=tf_single", *CNN, "microbatches=2")),
    Case("single-cnn-together", ("strategy=tf_single", *CNN, TOGETHER)),
    Case("single-cnn-fit", ("strategy=tf_single", *CNN, "strategy.loop=fit")),
    Case("single-cnn-fit-together", ("strategy=tf_single", *CNN, "strategy.loop=fit", TOGETHER)),
    Case("single-mlp", ("strategy=tf_single", *MLP)),
    Case(
        "first-half-buffers", ("strategy=tf_single", *RESNET, "microbatches=2"), "buffers of the first half"
    ),
    Case("single-resnet-m2", ("strategy=tf_single", *RESNET, "microbatches=2")),
    Case("single-terms", ("strategy=tf_single", *CNN, *TERMS)),
    Case("single-adamw", ("strategy=tf_single", *CNN, *ADAMW)),
    Case("single-terms-fit", ("strategy=tf_single", *CNN, *TERMS, "strategy.loop=fit")),
    Case("custom-terms", (*CUSTOM, *CNN, *TERMS, "microbatches=2", SAVED)),
    Case("custom-terms-resumed", (*CUSTOM, *CNN, *TERMS), resumes="custom-terms"),
    Case("custom-adamw", (*CUSTOM, *CNN, *ADAMW)),
    Case("custom-own-norm", (*CUSTOM, *CNN, *TERMS), "own norm"),
    Case("mirrored-terms", (*MIRRORED, *CNN, *TERMS, TOGETHER)),
    Case("mirrored-terms-resumed", (*MIRRORED, *CNN, *TERMS), resumes="custom-terms"),
    Case("split-terms", (*SPLIT, *CNN, *TERMS, "strategy.partition=size")),
    Case("split-terms-resumed", (*SPLIT, *CNN, *TERMS), resumes="custom-terms"),
    Case("split-own-norm", (*SPLIT, *CNN, *TERMS, "strategy.partition=size"), "own norm"),
)
DEEP = (
    Case("mirrored", (*MIRRORED, *RESNET18)),
    Case("custom", (*CUSTOM, *RESNET18)),
    Case("split", (*SPLIT, *RESNET18, "microbatches=2", "strategy.partition=[20,31]")),
    Case("halves", ("strategy=tf_single", *RESNET18, "microbatches=2"), "buffers of the first half"),
    Case("whole", ("strategy=tf_single", *RESNET18, "microbatches=2")),
)
WORKER = ("strategy=tf_multiworker", *PAIR)
AUTO = (
    Case("multiworker-cnn", (*WORKER, *CNN, SAVED)),
    Case("multiworker-cnn-resumed", (*WORKER, *CNN)),
    Case("multiworker-cnn-together", (*WORKER, *CNN, TOGETHER)),
    Case("multiworker-cnn-m2", (*WORKER, *CNN, "microbatches=2")),
    Case("multiworker-terms", (*WORKER, *CNN, *TERMS)),
    Case("multiworker-resnet", (*WORKER, *RESNET)),
    Case("multiworker-wrong-shard", (*WORKER, *CNN), "wrong shard"),
)
MPI = ("strategy=tf_mpi", *PAIR)
MPIEXEC = (
    Case("mpi-cnn", (*MPI, *CNN, SAVED)),
    Case("mpi-cnn-resumed", (*MPI, *CNN)),
    Case("mpi-cnn-m2", (*MPI, *CNN, "microbatches=2")),
    Case("mpi-resnet", (*MPI, *RESNET)),
    Case("mpi-terms", (*MPI, *CNN, *TERMS)),
    Case("mpi-missing-sum", (*MPI, *CNN), "missing sum"),
    Case("mpi-none", (*MPI, *CNN, "strategy.sync=none")),
    Case("mpi-epoch-average", (*MPI, *CNN, "strategy.sync=epoch_average")),
)
RING = (Case("multiworker-cnn-ring", (*WORKER, *CNN, "strategy.communication=ring")),)
SERVED = ("strategy=tf_parameter_server", "strategy.servers=2", "workers=1")
ONE_WORKER = (
    Case("served-cnn", (*SERVED, *CNN)),
    Case("served-cnn-m2", (*SERVED, *CNN, "microbatches=2")),
    Case("served-cnn-fixed", (*SERVED, *CNN, SAVED, "strategy.sharding=fixed")),
    Case("served-cnn-resumed", (*SERVED, *CNN, "strategy.sharding=fixed")),
    Case("served-cnn-min-size", (*SERVED, *CNN, "strategy.sharding=min_size")),
    Case("served-cnn-max-size", (*SERVED, *CNN, "strategy.sharding=max_size")),
    Case("served-terms", (*SERVED, *CNN, *TERMS, "strategy.sharding=fixed", SAVED)),
    Case("served-terms-resumed", (*SERVED, *CNN, *TERMS), resumes="served-terms"),
    Case("served-adamw", (*SERVED, *CNN, *ADAMW)),
    Case("served-resnet-fixed", (*SERVED, *RESNET, "strategy.sharding=fixed", "microbatches=2")),
)


def train_cases(folder: Path) -> None:
    """A process joins one cluster, and has one set of devices."""
    first = folder / "tensorflow" / "mirrored-cnn" / "checkpoint.npz"

    def started(
        cases: tuple[Case, ...], name: str, world: int, strategy: str, *words: str
    ) -> contextlib.AbstractContextManager[Ranks]:
        own = folder / name
        write(own, cases)
        for path in own.glob("*-cnn-resumed.yaml"):
            path.write_text(path.read_text().replace("resume: null", f"resume: {first}"))
        return ranks(MODULE, [own, strategy], world, own, words=[f"strategy={strategy}", *words])

    # It traces for minutes, on one core; the others can't begin before its first checkpoint.
    with started(ONE_PROCESS, "tensorflow", 1, "tf_single") as one:
        one.wait(LIMIT_SECONDS, until=first.exists)
        for others in (
            started(AUTO, "multiworker", 2, "tf_multiworker"),
            started(RING, "ring", 2, "tf_multiworker"),
            started(MPIEXEC, "mpi", 2, "tf_mpi"),
            started(ONE_WORKER, "served", 1, "tf_parameter_server", SERVED[1]),
        ):
            with others as running:
                running.wait(LIMIT_SECONDS)
        one.wait(LIMIT_SECONDS)


@pytest.fixture(scope="module")
def folders(cases: Path) -> dict[str, Path]:
    """Where each case was trained."""
    return {path.stem: path.with_suffix("") for path in cases.glob("*/*.yaml")}


@pytest.fixture(scope="module")
def trained(folders: dict[str, Path]) -> dict[str, list[Outcome]]:
    return {name: read(folder) for name, folder in folders.items()}


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("mirrored-cnn", "single-cnn"),
        ("mirrored-cnn-together", "single-cnn"),
        ("mirrored-cnn-hierarchical", "single-cnn"),
        ("custom-cnn", "single-cnn"),
        ("custom-cnn-together", "single-cnn"),
        ("custom-cnn-m2", "single-cnn"),
        ("custom-cnn-xla", "single-cnn"),
        ("custom-mlp", "single-mlp"),
        # The first replica's micro-batches alone move the buffers that count.
        ("custom-resnet", "first-half-buffers"),
        ("mirrored-resnet", "first-half-buffers"),
        ("multiworker-resnet", "first-half-buffers"),
        ("split-cnn", "single-cnn"),
        ("split-cnn-m2-together", "single-cnn"),
        ("split-resnet-m2", "single-resnet-m2"),
        ("single-cnn-m2", "single-cnn"),
        ("single-cnn-together", "single-cnn"),
        ("single-cnn-fit", "single-cnn"),
        ("single-cnn-fit-together", "single-cnn"),
        ("multiworker-cnn", "single-cnn"),
        ("multiworker-cnn-together", "single-cnn"),
        ("multiworker-cnn-m2", "single-cnn"),
        ("multiworker-cnn-ring", "single-cnn"),
        # With one worker nothing is stale.
        ("served-cnn", "single-cnn"),
        ("served-cnn-m2", "single-cnn"),
        ("served-cnn-fixed", "single-cnn"),
        ("served-cnn-min-size", "single-cnn"),
        ("served-cnn-max-size", "single-cnn"),
        ("served-resnet-fixed", "single-resnet-m2"),
        ("mpi-cnn", "single-cnn"),
        ("mpi-cnn-m2", "single-cnn"),
        ("mpi-resnet", "first-half-buffers"),
        # Clipped is the sum of the replicas' gradients, or of all stages.
        ("single-terms-fit", "single-terms"),
        ("custom-terms", "single-terms"),
        ("mirrored-terms", "single-terms"),
        ("split-terms", "single-terms"),
        ("multiworker-terms", "single-terms"),
        ("mpi-terms", "single-terms"),
        ("served-terms", "single-terms"),
        ("custom-adamw", "single-adamw"),
        ("served-adamw", "single-adamw"),
    ],
)
def test_losses_and_parameters_are_those_of(
    trained: dict[str, list[Outcome]], name: str, reference: str
) -> None:
    expected = trained[reference][0]
    assert len(expected.losses) == STEPS
    for outcome in trained[name]:
        assert not differences(outcome, expected), gaps(outcome, expected)
        assert outcome.evaluation == pytest.approx(expected.evaluation, rel=1e-9)


@pytest.mark.long
def test_resnet18_is_trained_as_the_small_one_is(tmp_path: Path) -> None:
    write(tmp_path, DEEP)
    with ranks(MODULE, [tmp_path, "tf_single"], 1, tmp_path, words=["strategy=tf_single"]) as running:
        running.wait(LIMIT_SECONDS)
    outcomes = {case.name: read(tmp_path / case.name)[0] for case in DEEP}
    for name, reference in (("mirrored", "halves"), ("custom", "halves"), ("split", "whole")):
        expected = outcomes[reference]
        assert not differences(outcomes[name], expected), gaps(outcomes[name], expected)


def test_local_statistics_are_those_of_single_with_as_many_microbatches(
    trained: dict[str, list[Outcome]],
) -> None:
    # `tf_single` moves its buffers on both micro-batches, and these must therefore differ.
    assert differences(trained["custom-resnet"][0], trained["single-resnet-m2"][0]) == ["buffers"]


@pytest.mark.parametrize(
    "name",
    [
        "custom-wrong-shard",
        "custom-missing-sum",
        "custom-stale-weight",
        "multiworker-wrong-shard",
        "mpi-missing-sum",
    ],
)
def test_the_parity_check_fails_for(trained: dict[str, list[Outcome]], name: str) -> None:
    differing = differences(trained[name][0], trained["single-cnn"][0])
    assert {"losses", "parameters"} <= set(differing), gaps(trained[name][0], trained["single-cnn"][0])


@pytest.mark.parametrize(
    "name", ["custom-cnn", "split-cnn", "single-cnn", "multiworker-cnn", "mpi-cnn", "served-cnn-fixed"]
)
def test_every_strategy_writes_the_same_checkpoint(folders: dict[str, Path], name: str) -> None:
    expected, written = (dict(np.load(folders[each] / "checkpoint.npz")) for each in ("mirrored-cnn", name))
    # Which worker did how many steps is known of asynchronous workers.
    assert [list(each.pop("worker_steps")) for each in (expected, written)] == [
        [],
        [5] if "served" in name else [],
    ]
    if "served" in name:
        # Workers' sums since the last evaluation are in no checkpoint.
        assert written.pop("sums").shape == (0,)
        expected.pop("sums")
    assert (int(written["epoch"]), int(written["step"]), int(written["iterations"])) == (0, 5, 5)
    assert {key.partition("/")[0] for key in written if "/" in key} == {"model", "velocity"}
    assert sorted(written) == sorted(expected)
    for key, value in expected.items():
        if value.dtype.kind == "f":
            assert np.linalg.norm(written[key] - value) <= 1e-9 * np.linalg.norm(value), key
        else:
            assert written[key] == value, key


@pytest.mark.parametrize("name", ["mirrored", "custom", "split", "single", "multiworker", "mpi", "served"])
def test_every_strategy_goes_on_from_another_ones_checkpoint(
    trained: dict[str, list[Outcome]], name: str
) -> None:
    for outcome in trained[f"{name}-cnn-resumed"]:
        expected = dataclasses.replace(trained["single-cnn"][0], losses=trained["single-cnn"][0].losses[5:])
        assert len(outcome.losses) == STEPS - 5
        assert not differences(outcome, expected), gaps(outcome, expected)
        assert outcome.evaluation == pytest.approx(expected.evaluation, rel=1e-9)


@pytest.mark.parametrize("name", ["custom-own-norm", "split-own-norm"])
def test_the_parity_check_fails_for_the_norm_of_a_part(trained: dict[str, list[Outcome]], name: str) -> None:
    assert {"losses", "parameters"} <= set(differences(trained[name][0], trained["single-terms"][0]))


@pytest.mark.parametrize("name", ["custom", "mirrored", "split", "served"])
def test_a_resumed_training_goes_on_at_its_rate(trained: dict[str, list[Outcome]], name: str) -> None:
    whole = trained["single-terms"][0]
    expected = dataclasses.replace(whole, losses=whole.losses[5:])
    for outcome in trained[f"{name}-terms-resumed"]:
        assert not differences(outcome, expected), gaps(outcome, expected)


def test_ranks_that_exchange_nothing_train_two_models(trained: dict[str, list[Outcome]]) -> None:
    (first, second), single = trained["mpi-none"], trained["single-cnn"][0]
    assert not set(first.own_losses) & set(second.own_losses)
    # They begin as one model, each on its half of the batch.
    assert first.losses[0] == pytest.approx(single.losses[0], rel=1e-9)
    assert np.abs(first.vector("parameters") - second.vector("parameters")).max() > 1e-4
    for outcome in (first, second):
        assert {"losses", "parameters"} <= set(differences(outcome, single))
    # What is exchanged at each step, every rank has.
    assert len({outcome.own_losses for outcome in trained["mpi-cnn"]}) == 1


def test_an_epoch_s_average_is_the_mean_of_what_ranks_learned_alone(
    trained: dict[str, list[Outcome]],
) -> None:
    alone = [outcome.vector("parameters") for outcome in trained["mpi-none"]]
    for outcome in trained["mpi-epoch-average"]:
        np.testing.assert_allclose(
            outcome.vector("parameters"), np.mean(alone, axis=0), rtol=1e-9, atol=1e-12
        )
