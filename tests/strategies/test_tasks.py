"""Any task adds up under every strategy: two inputs, two outputs, two targets, and means over uneven targets.

Ten float64 steps are those of one device to 1e-9, as in test_parity.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from src.data import available
from tests.strategies import parity
from tests.strategies.parity import STEPS, Case, Outcome, differences, gaps, joined
from tests.support import ROOT, config

pytestmark = pytest.mark.slow
PLUGIN = ("--config-dir", str(ROOT / "tests" / "plugin" / "conf"))
COMMON = (*PLUGIN, "dataset=angles", "model=joined", "batch=32", "optimizer.lr=0.02")
# The loss is a mean over the numbers that are known, of which the ranks have unequally many.
KNOWN = (*COMMON, "task=known_regression")
DDP = ("strategy=ddp", "workers=2")
PIPELINE = ("strategy=pipeline", "workers=2", "microbatches=4", "strategy.partition=layers")
SPLIT = ("strategy=model_split", "workers=2", "microbatches=2")
MPI = ("strategy=mpi", "workers=2")
SERVED = ("strategy=parameter_server", "workers=2", "strategy.mode=sync")
SANDBLASTER = ("strategy=sandblaster_lbfgs", "workers=2", "strategy.portion=12")
# Noise is drawn once for a batch, in the same order on every rank that has the whole model.
BAYES = ("model=bayes_mlp", "model.hidden=8", "batch=32")
ALONE = (
    Case("single", COMMON),
    Case("single-known", KNOWN),
    Case("single-bayes", BAYES),
    Case("served", (*COMMON, *SERVED)),
    Case("served-known", (*KNOWN, *SERVED)),
    Case("sandblaster", (*KNOWN, *SANDBLASTER)),
    Case("sandblaster-whole", (*KNOWN, *SANDBLASTER, "workers=1", "strategy.portion=32")),
)
PAIR = (
    Case("ddp", (*COMMON, *DDP)),
    Case("ddp-known", (*KNOWN, *DDP, "microbatches=2")),
    Case("ddp-known-shares", (*KNOWN, *DDP, "batch_shares=[25,7]")),
    Case("ddp-known-local-count", (*KNOWN, *DDP), "local count"),
    Case("pipeline", (*COMMON, *PIPELINE)),
    Case("pipeline-1f1b-known", (*KNOWN, *PIPELINE, "strategy.schedule=1f1b")),
    Case("split-known", (*KNOWN, *SPLIT)),
    # The second input crosses the boundary, for it is read by the last layers.
    Case("split-first-layer", (*COMMON, *SPLIT, "strategy.partition=[second]")),
    Case("ddp-bayes", (*BAYES, *DDP)),
)
MPIEXEC = (Case("mpi-known", (*KNOWN, *MPI)), Case("mpi-bayes", (*BAYES, *MPI)))
JOBS = {"alone": (ALONE, "ddp", 1), "pair": (PAIR, "ddp", 2), "mpiexec": (MPIEXEC, "mpi", 2)}
STAGED = ("pipeline", "split")


def train_cases(folder: Path) -> None:
    """By one process, by two, and by two of an mpiexec, as test_parity.py does."""
    available.ensure(config(*COMMON).dataset)
    parity.train(JOBS, folder)


@pytest.fixture(scope="module")
def trained(cases: Path) -> dict[str, list[Outcome]]:
    return parity.outcomes(JOBS, cases)


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("ddp", "single"),
        ("pipeline", "single"),
        ("split-first-layer", "single"),
        ("ddp-known", "single-known"),
        ("ddp-known-shares", "single-known"),
        ("pipeline-1f1b-known", "single-known"),
        ("split-known", "single-known"),
        ("mpi-known", "single-known"),
        ("ddp-bayes", "single-bayes"),
        ("mpi-bayes", "single-bayes"),
    ],
)
def test_losses_gradients_and_parameters_are_those_of_one_device(
    trained: dict[str, list[Outcome]], name: str, reference: str
) -> None:
    expected, outcomes = trained[reference][0], trained[name]
    assert len(expected.losses) == STEPS
    for outcome in [joined(outcomes)] if name.startswith(STAGED) else outcomes:
        assert not differences(outcome, expected), gaps(outcome, expected)
        assert outcome.evaluation == pytest.approx(expected.evaluation, rel=1e-5)


@pytest.mark.parametrize(("name", "reference"), [("served", "single"), ("served-known", "single-known")])
def test_parameter_servers_learn_the_same(
    trained: dict[str, list[Outcome]], name: str, reference: str
) -> None:
    outcome, expected = trained[name][0], trained[reference][0]
    assert outcome.losses == pytest.approx(expected.losses, rel=1e-9)
    assert outcome.vector("parameters") == pytest.approx(expected.vector("parameters"), rel=1e-9, abs=1e-12)
    assert outcome.evaluation == pytest.approx(expected.evaluation, rel=1e-5)


def test_portions_of_a_batch_are_the_batch(trained: dict[str, list[Outcome]]) -> None:
    outcome, expected = trained["sandblaster"][0], trained["sandblaster-whole"][0]
    assert outcome.losses == pytest.approx(expected.losses, rel=1e-7)


def test_a_rank_s_own_count_of_targets_is_noticed(trained: dict[str, list[Outcome]]) -> None:
    for outcome in trained["ddp-known-local-count"]:
        assert {"losses", "parameters"} <= set(differences(outcome, trained["single-known"][0]))
