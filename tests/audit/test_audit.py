"""`python -m src.audit`, as a user types it, on models and strategies that differ for a reason, or don't."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.audit.command import MODELS, audit, causes, findings
from tests.support import ROOT, instances

pytestmark = pytest.mark.timed
LONG_LIMIT = 1200


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "usage: python -m src.audit strategy="),
        (("strategy=capacity", "scaling=weak"), "trains a model on each device, and no common one"),
        (("strategy=dpp",), "did you mean ddp?"),
        (("strategy=ddp", "workers=3", "batch=64"), "must divide by workers"),
        (("strategy=local_sgd", "--resume"), "--resume: strategy local_sgd writes no checkpoints"),
        (("strategy=sandblaster_lbfgs",), "differs from one device by design (another optimizer)"),
        (("strategy=ddp", "out=/proc/nope"), "out=/proc/nope: "),
    ],
)
def test_a_mistake_is_one_line_before_anything_starts(
    words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "src.audit", *words]
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
                          capture_output=True, text=True, timeout=60)  # fmt: skip
    assert done.returncode == 2 and said in done.stdout + done.stderr
    assert len((done.stdout + done.stderr).strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_strategies_that_compute_the_same_are_said_to(tmp_path: Path) -> None:
    words = ("strategy=mpi,pipeline,parameter_server,local_sgd,hogwild", "model=cnn", "dataset=mnist")
    done = audit(tmp_path, *words, "workers=2", "optimizer.momentum=0.9")
    assert done.returncode == 0, done.stderr
    found = findings(tmp_path)
    assert [finding["same"] for finding in found] == [True] * 5
    for finding in found:
        assert max(finding["largest_gaps"]["fp64"].values()) < 1e-12
        assert finding["largest_gaps"]["fp64"].keys() == {"weights", "loss", "gradients"}
        assert not finding["causes"] and not finding["tested"]
    assert found[3]["against"] == "one process that follows its rule"
    assert found[4]["by_design"] == "asynchronous"
    assert "hogwild on 2 (audited with one worker) differs from one device by design" in done.stdout


# Model -> what is to be found.
EXPECTED = {
    "Net": [],
    "Normalised": ["batchnorm"],
    "Dropped": ["dropout"],
    "Noisy": ["draws"],
    "RanksGenerator": ["own_generators"],
    "Centred": ["over_batch"],
    "MovingBuffer": ["state"],
    "MovingAttribute": ["state"],
    "NormalisedAndDropped": ["batchnorm", "dropout"],
}


# Of each of these others have the cause.
FURTHER = ("Dropped", "Centred", "MovingAttribute")
KINDS = {
    "one of each": [name for name in EXPECTED if name not in FURTHER],
    "further": ["Net", *FURTHER],
}


@pytest.mark.slow
@pytest.mark.parametrize("asked", instances(KINDS, "one of each"))
def test_the_cause_is_named_and_none_where_there_is_none(asked: str, tmp_path: Path) -> None:
    names = KINDS[asked]
    expected = {name: EXPECTED[name] for name in names}
    paths = ",".join(f"{MODELS}.{name}" for name in names)
    done = audit(
        tmp_path, "strategy=ddp", "workers=2", "model=custom", f"model.path={paths}", "dataset=mnist"
    )
    assert done.returncode == 3, done.stderr
    found = findings(tmp_path)
    assert dict(zip(names, map(causes, found), strict=True)) == expected
    assert [finding["same"] for finding in found] == [not each for each in expected.values()]
    # A confirmed cause was tested, and the runs were the same then.
    for finding in found[1:]:
        assert finding["tested"][-1]["same"] or len(finding["causes"]) > 1
    assert found[1]["first_difference"][0]["kind"] == "loss" and found[1]["first_difference"][0]["step"] == 1
    assert ("buffer seen before step 2" in done.stdout) == ("MovingBuffer" in names)


@pytest.mark.slow
def test_losses_of_the_users_own_are_told_apart(tmp_path: Path) -> None:
    words = ("--config-dir", str(ROOT / "tests/plugin/conf"), "strategy=ddp", "workers=2", "dataset=mnist")
    own = ("model=custom", f"model.path={MODELS}.Net", "task=ignoring,contrastive")
    done = audit(tmp_path, *words, *own)
    assert done.returncode == 3, done.stderr
    assert [causes(finding) for finding in findings(tmp_path)] == [["counts"], ["over_batch"]]


@pytest.mark.slow
def test_parameters_that_a_step_leaves_out_are_named_under_parameter_servers(tmp_path: Path) -> None:
    own = ("model=custom", f"model.path={MODELS}.SometimesSkipped", "optimizer.momentum=0.9")
    done = audit(tmp_path, "strategy=parameter_server", "workers=2", "dataset=mnist", *own)
    assert done.returncode == 3, done.stderr
    (finding,) = findings(tmp_path)
    assert causes(finding) == ["missing_gradients"]
    assert {gap["name"] for gap in finding["first_difference"]} <= {"layer.bias", "layer.weight"}


# Fault -> cause, and what differs first in the run and in the resumed one: kind, name, rank.
FAULTS = {
    "none": ([], None, None),
    "wrong_shard": ([], ("loss", "", 0), None),
    "kept_bias": ([], ("gradient", "first.bias", 1), ("weight", "first.bias", 1)),
    "stale_weight": ([], ("weight", "last.weight", 1), ("weight", "last.weight", 1)),
    "clipped_parts": (["clip"], ("gradient", "first.weight", 0), None),
    "forgotten_state": ([], None, ("weight", "first.weight", 0)),
}


@pytest.mark.slow
def test_a_fault_of_a_strategy_is_found_with_the_right_tensor(tmp_path: Path) -> None:
    conf = ("--config-dir", str(ROOT / "tests/plugin/conf"))
    words = (
        "strategy=faulty",
        f"strategy.fault={','.join(FAULTS)}",
        "workers=2",
        "dataset=mnist",
        "--resume",
    )
    own = ("model=custom", f"model.path={MODELS}.Net", "optimizer.clip_norm=0.2", "optimizer.momentum=0.9")
    done = audit(tmp_path, *conf, *words, *own)
    assert done.returncode == 3, done.stderr
    found = findings(tmp_path)
    for (fault, (cause, first, resumed)), run, again in zip(
        FAULTS.items(), found[::2], found[1::2], strict=True
    ):
        assert causes(run) == cause, fault
        for finding, expected in ((run, first), (again, resumed)):
            assert finding["same"] is (expected is None), fault
            if expected is not None:
                gap = finding["first_difference"][0]
                assert (gap["kind"], gap["name"], gap["rank"]) == expected, fault
    assert causes(found[-1]) == ["resume"]


@pytest.mark.slow
def test_a_model_that_float64_does_not_suit_is_audited_in_its_own_precision(tmp_path: Path) -> None:
    own = ("model=custom", f"model.path={MODELS}.Single")
    done = audit(tmp_path, "strategy=ddp", "workers=2", "dataset=mnist", *own)
    (finding,) = findings(tmp_path)
    assert done.returncode == 3 and causes(finding) == ["over_batch"]
    assert "It was not audited in float64: " in done.stdout and "same dtype" in done.stdout


@pytest.mark.slow
def test_a_lightning_modules_own_mean_over_unequal_counts_is_found(tmp_path: Path) -> None:
    paths = ",".join(f"tests.plugin.model.lit.{name}" for name in ("Plain", "Counting"))
    own = ("model=lightning", f"model.path={paths}")
    done = audit(tmp_path, "strategy=ddp", "workers=2", "dataset=mnist", *own)
    assert done.returncode == 3, done.stderr
    assert [causes(finding) for finding in findings(tmp_path)] == [[], ["counts"]]
    data = ("dataset=torch", "dataset.module=tests.plugin.model.lit.Squares", "batch=40", "batchnorm=sync")
    own = ("model=lightning", "model.path=tests.plugin.model.lit.Regression")
    done = audit(tmp_path, "strategy=ddp", "workers=2", *own, *data)
    assert done.returncode == 0, done.stdout + done.stderr
    assert findings(tmp_path)[0]["same_by_precision"]["fp64"]


# Strategy -> the causes that it names otherwise than `EXPECTED`; local SGD has ranks of their own batches.
OTHERWISE: dict[str, dict[str, list[str]]] = {
    "mpi": {},
    "parameter_server": {},
    "pipeline": {"MovingBuffer": ["microbatches"]},
    "local_sgd": {name: [] for name in EXPECTED if name != "RanksGenerator"},
}
# Stages can't be cut of a model that keeps these, which is said before a run.
UNCUT = {"RanksGenerator", "MovingAttribute"}


@pytest.mark.long
@pytest.mark.parametrize("strategy", OTHERWISE)
def test_each_cause_is_named_under_each_strategy(strategy: str, tmp_path: Path) -> None:
    names = [name for name in EXPECTED if strategy != "pipeline" or name not in UNCUT]
    paths = ",".join(f"{MODELS}.{name}" for name in names)
    own = ("model=custom", f"model.path={paths}", "dataset=mnist")
    # What a model draws in the first stage is what one device draws: it must be in the second.
    cut = ("strategy.partition=[1,2]",) if strategy == "pipeline" else ()
    audit(tmp_path, f"strategy={strategy}", "workers=2", *cut, *own, limit=LONG_LIMIT)
    found = dict(zip(names, map(causes, findings(tmp_path)), strict=True))
    assert found == {name: OTHERWISE[strategy].get(name, EXPECTED[name]) for name in names}
