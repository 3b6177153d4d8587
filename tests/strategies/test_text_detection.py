"""EAST computes under every strategy what it computes on one device: ten float64 steps, to 1e-9.

Tensors of several resolutions cross the cuts between its trunk, its merging branch and its heads.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from src.data import available
from tests.strategies import parity
from tests.strategies.parity import STEPS, Case, Outcome, differences, gaps, joined
from tests.support import ROOT, config

pytestmark = pytest.mark.slow
PLUGIN = ("--config-dir", str(ROOT / "tests" / "plugin" / "conf"))
COMMON = (*PLUGIN, "dataset=scenes", "model=east", "model.width=4", "batch=8", "optimizer.lr=0.001")
DICE = (*COMMON, "task.score_loss=dice")
DDP = ("strategy=ddp", "workers=2")
PIPELINE = ("strategy=pipeline", "workers=2", "microbatches=4")
SPLIT = ("strategy=model_split", "workers=2")
MPI = ("strategy=mpi", "workers=2")
SERVED = ("strategy=parameter_server", "workers=2", "strategy.mode=sync")
# The components, by their names.
COMPONENTS = "strategy.partition=[merging]"
THREE = (*COMMON, *PIPELINE, "workers=3", "strategy.partition=[merging,heads]")
ALONE = (
    Case("single", COMMON),
    Case("single-m2", (*COMMON, "microbatches=2")),
    Case("single-m4", (*COMMON, "microbatches=4")),
    Case("single-m4-dice", (*DICE, "microbatches=4")),
    Case("served", (*COMMON, *SERVED)),
)
PAIR = (
    Case("ddp", (*COMMON, *DDP)),
    Case("ddp-m2", (*COMMON, *DDP, "microbatches=2")),
    Case("ddp-m2-dice", (*DICE, *DDP, "microbatches=2")),
    Case("ddp-per-batch", (*COMMON, *DDP), "terms per batch"),
    Case("split-components", (*COMMON, *SPLIT, COMPONENTS)),
    Case("pipeline-components", (*COMMON, *PIPELINE, COMPONENTS)),
    Case("pipeline-components-dice", (*DICE, *PIPELINE, COMPONENTS, "strategy.schedule=1f1b")),
    Case("pipeline-optimal", (*COMMON, *PIPELINE, "strategy.partition=optimal")),
    Case("pipeline-per-batch", (*COMMON, *PIPELINE, COMPONENTS), "terms per batch"),
)
TRIPLE = (Case("pipeline-3-1f1b", (*THREE, "strategy.schedule=1f1b")),)
MPIEXEC = (Case("mpi-m2", (*COMMON, *MPI, "microbatches=2")),)
JOBS = {
    "alone": (ALONE, "ddp", 1),
    "pair": (PAIR, "ddp", 2),
    "triple": (TRIPLE, "ddp", 3),
    "mpiexec": (MPIEXEC, "mpi", 2),
}
STAGED = ("pipeline", "split")


def train_cases(folder: Path) -> None:
    available.ensure(config(*COMMON).dataset)
    parity.train(JOBS, folder)


@pytest.fixture(scope="module")
def trained(cases: Path) -> dict[str, list[Outcome]]:
    return parity.outcomes(JOBS, cases)


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        # BatchNorm's statistics are a micro-batch's, whoever has it.
        ("ddp", "single-m2"),
        ("ddp-m2", "single-m4"),
        ("ddp-m2-dice", "single-m4-dice"),
        ("mpi-m2", "single-m4"),
        ("split-components", "single"),
        ("pipeline-components", "single-m4"),
        ("pipeline-components-dice", "single-m4-dice"),
        ("pipeline-optimal", "single-m4"),
        ("pipeline-3-1f1b", "single-m4"),
    ],
)
def test_losses_gradients_and_parameters_are_those_of_one_device(
    trained: dict[str, list[Outcome]], name: str, reference: str
) -> None:
    expected, outcomes = trained[reference][0], trained[name]
    assert len(expected.losses) == STEPS
    staged = name.startswith(STAGED)
    for outcome in [joined(outcomes)] if staged else outcomes:
        different = differences(outcome, expected)
        # A copy's running statistics are those of its own micro-batches.
        assert not [kind for kind in different if staged or kind != "buffers"], gaps(outcome, expected)
        if staged:
            assert outcome.evaluation == pytest.approx(expected.evaluation, rel=1e-5)


def test_parameter_servers_learn_the_same(trained: dict[str, list[Outcome]]) -> None:
    outcome, expected = trained["served"][0], trained["single-m2"][0]
    assert outcome.losses == pytest.approx(expected.losses, rel=1e-9)
    assert outcome.vector("parameters") == pytest.approx(expected.vector("parameters"), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "reference"), [("ddp-per-batch", "single-m2"), ("pipeline-per-batch", "single-m4")]
)
def test_terms_that_are_normalised_per_batch_are_noticed(
    trained: dict[str, list[Outcome]], name: str, reference: str
) -> None:
    outcome = joined(trained[name]) if name.startswith(STAGED) else trained[name][0]
    assert {"losses", "gradients", "parameters"} <= set(differences(outcome, trained[reference][0]))


def test_tensors_of_several_resolutions_cross_the_cut_between_components(cases: Path) -> None:
    plan = json.loads((cases / "pair" / "pipeline-components" / "partition.json").read_text())
    first, second = plan["stages"]
    assert second["first"].startswith("merging.")
    assert len(first["sends"]) == 4
