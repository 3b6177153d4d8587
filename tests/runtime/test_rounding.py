"""What one last digit in each weight does to a `single` run's first ten losses, and to nothing else."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from src.measure.arithmetic import PARITY_BOUND, PARITY_STEPS
from src.run import files
from tests.support import config, run_ranks

LIMIT_SECONDS = 240
BATCH, STEPS = 32, 12
# With dropout, whose masks must be the same ones again.
COMMON = ("model=mlp", f"batch={BATCH}", f"dataset.limit={BATCH * STEPS}", "optimizer.lr=0.01")
UNSTABLE = ("model=custom", "model.path=tests.runtime.rounding_rank.unstable_{framework}")
RATES = ("optimizer.schedule=cosine", "optimizer.warmup_steps=3", "optimizer.clip_norm=1.0")
# Five steps an epoch: the ten end with the second one, after an evaluation.
EPOCHS = (f"dataset.limit={BATCH * 5}", "epochs=3", "checkpoint_every=4", "optimizer.name=adam", *RATES)
FIT, TOGETHER = "strategy.loop=fit", "strategy.steps_per_execution=4"
# Name -> what is trained, and what is changed before it is trained once more.
CASES: dict[str, tuple[tuple[str, ...], str | None]] = {
    "stable": ((), None),
    "unstable": (UNSTABLE, None),
    "unchanged": ((), "unchanged weights"),
    "unchanged in epochs": (EPOCHS, "unchanged weights"),
    "unchanged in pieces": (("microbatches=2",), "unchanged weights"),
    "other batches": ((), "other batches"),
    "other masks": ((), "other masks"),
    "slow": ((), "slow"),
    "failing": ((), "failing"),
    "nine steps": ((f"dataset.limit={BATCH * 9}",), None),
    "ten steps": ((f"dataset.limit={BATCH * 10}",), None),
    "resumed": ((*EPOCHS, "epochs=5"), None),
    "diverged": (("optimizer.lr=1e30", "epochs=3"), None),
    "stopped": (("epochs=1000",), "stopped"),
}
FURTHER: dict[str, dict[str, tuple[tuple[str, ...], str | None]]] = {
    "torch": {},
    "tensorflow": {
        "unstable by fit": ((*UNSTABLE, FIT), None),
        "unchanged by fit": ((FIT, *EPOCHS), "unchanged weights"),
        "other batches by fit": ((FIT,), "other batches"),
        "unchanged together": ((TOGETHER,), "unchanged weights"),
        "unchanged together by fit": ((FIT, TOGETHER), "unchanged weights"),
    },
}
# It changes Keras's types for the process.
LAST: dict[str, tuple[tuple[str, ...], str | None]] = {"bf16": (("precision=bf16",), None)}
STRATEGIES = {"torch": "single", "tensorflow": "tf_single"}


@dataclasses.dataclass
class Told:
    """What the process told of a framework's cases."""

    framework: str
    folder: Path
    names: list[str]

    def named(self, *beginnings: str) -> list[str]:
        """The cases whose names begin so; there are some."""
        names = [name for name in self.names if name.startswith(beginnings)]
        assert names
        return names

    def of(self, case: str) -> dict[str, Any]:
        return json.loads((self.folder / f"{case}.json").read_text())

    def gap(self, case: str) -> float:
        return self.of(case)["record"]["rounding_gap"]

    def losses(self, case: str) -> list[float]:
        with (self.folder / case / "0" / files.STEPS).open(newline="") as file:
            return [float(row["loss"]) for row in csv.DictReader(file)]


@pytest.fixture(scope="module", params=["torch", pytest.param("tensorflow", marks=pytest.mark.slow)])
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, mnist: None) -> Told:
    """A framework's cases, trained in one process."""
    framework, folder = request.param, tmp_path_factory.mktemp(request.param)
    strategy = f"strategy={STRATEGIES[framework]}"
    cases = {**CASES, **FURTHER[framework], **LAST}
    for name, (words, _) in cases.items():
        chosen = config(strategy, *COMMON, *(word.format(framework=framework) for word in words))
        if name == "resumed":
            checkpoint = folder / "unchanged in epochs" / files.CHECKPOINTS[framework]
            chosen = dataclasses.replace(chosen, resume=str(checkpoint))
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(dataclasses.asdict(chosen)))
        (folder / name).mkdir()
    changes = [(name, change) for name, (_, change) in cases.items()]
    (folder / "cases.json").write_text(json.dumps(changes))
    module, logs = "tests.runtime.rounding_rank", folder / "logs"
    run_ranks(module, [folder], world=1, logs=logs, limit=LIMIT_SECONDS, words=(strategy,))
    return Told(framework, folder, list(cases))


def test_each_trained_weight_changes_by_one_last_digit(told: Told) -> None:
    with np.load(told.folder / "weights.npz") as file:
        arrays = dict(file)

    def of(name: str) -> list[np.ndarray]:
        return [arrays[f"{name}/{number}"] for number in range(4)]

    down, up = 0, 0
    for before, after in zip(of("before"), of("after"), strict=True):
        assert before.dtype == after.dtype == np.float32
        risen = after == np.nextafter(before, np.float32(np.inf))
        fallen = after == np.nextafter(before, np.float32(-np.inf))
        assert (risen ^ fallen).all()
        down, up = down + int(fallen.sum()), up + int(risen.sum())
    assert up + down == 784 * 128 + 128 + 128 * 10 + 10
    # Within five standard deviations of a fair coin.
    assert abs(up - down) < 5 * math.sqrt(up + down)
    assert all((a == b).all() for a, b in zip(of("after"), of("again"), strict=True))
    assert not any((a == b).all() for a, b in zip(of("after"), of("other"), strict=True))
    frozen, *others = [(a == b).all() for a, b in zip(of("before"), of("frozen"), strict=True)]
    assert frozen and not any(others)
    # No random number that training draws is used up.
    drawn = [arrays[f"{name}/drawn"].tolist() for name in ("before", "after", "again", "other", "frozen")]
    assert drawn == [drawn[0]] * 5


def test_a_stable_training_is_moved_little_and_an_unstable_one_a_lot(told: Told) -> None:
    for case in told.named("stable"):
        assert told.gap(case) < PARITY_BOUND / 10
    for case in told.named("unstable"):
        assert told.gap(case) > 100 * PARITY_BOUND


def test_the_gap_is_that_of_ten_losses_which_the_record_keeps(told: Told) -> None:
    own, record = told.losses("unstable"), told.of("unstable")["record"]
    assert len(record["rounding_losses"]) == PARITY_STEPS
    pairs = list(zip(record["rounding_losses"], own[:PARITY_STEPS], strict=True))
    assert record["rounding_gap"] == max(abs(a - b) / max(1, abs(b)) for a, b in pairs)


def test_the_same_batches_masks_and_updates_are_taken_again(told: Told) -> None:
    """From unchanged weights the losses are the same, to the last digit."""
    for case in told.named("unchanged"):
        again = told.of(case)["record"]["rounding_losses"]
        assert again == told.losses(case)[:PARITY_STEPS], case
        assert len(set(again)) == PARITY_STEPS


def test_other_batches_or_masks_would_show(told: Told) -> None:
    for case in told.named("other"):
        assert told.gap(case) > 10 * PARITY_BOUND, case


def test_nothing_else_in_the_record_changes(told: Told) -> None:
    for case in told.named("stable", "unstable", "unchanged", "ten steps", "stopped"):
        of_case = told.of(case)
        # On a slow machine a note tells the person who waits how long there is to wait.
        assert [name for name in of_case["files"] if name != files.NOTES] == [files.RECORD], case
        assert of_case["keys"] == ["rounding_gap", "rounding_losses", "rounding_seconds"]
        assert of_case["record"]["rounding_seconds"] > 0
        assert of_case["record"]["status"] == ("time_limit" if case == "stopped" else "ok")
    assert len(told.losses("ten steps")) == PARITY_STEPS


def test_there_is_none_of_other_trainings(told: Told) -> None:
    steps = {"nine steps": 9, "resumed": 10, "bf16": STEPS, "failing": STEPS, "diverged": None}
    for case, count in steps.items():
        of_case = told.of(case)
        assert (of_case["files"], of_case["keys"]) == ([], []), case
        assert "rounding_gap" not in of_case["record"]
        assert of_case["record"]["status"] == ("diverged" if case == "diverged" else "ok")
        assert count is None or len(told.losses(case)) == count


def test_the_log_says_why_there_is_none(told: Told) -> None:
    (log,) = (told.folder / "logs").glob("*rank-0.log")
    assert "no rounding gap, for the first 10 steps once more failed:\nTraceback" in log.read_text()
    assert "RuntimeError: the last digit is gone" in log.read_text()


def test_the_person_who_waits_is_told_if_it_takes_long(told: Told) -> None:
    assert sorted(told.of("slow")["files"]) == sorted([files.NOTES, files.RECORD])
    assert "the first 10 steps once more" in (told.folder / "slow" / "0" / files.NOTES).read_text()
