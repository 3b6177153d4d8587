"""PipeDream computes what one process computes that applies its rule to the whole model.

Ten float64 steps, to 1e-9, buffers included.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.strategies import parity
from tests.strategies.parity import (
    ADAMW,
    CNN,
    GPT,
    NORMED,
    SAVED,
    UNCLIPPED,
    Case,
    Outcome,
    differences,
    gaps,
    joined,
)
from tests.support import ROOT

pytestmark = pytest.mark.slow

PLUGINS = ("--config-dir", f"{ROOT}/tests/plugin/conf")
OWN = ("model=custom", "model.path=tests.plugin.model.tiny.recurrent", "batch=32")
# Without the limit on the gradient's norm, which no stage knows of the others.
ADAPTIVE = tuple(word for word in ADAMW if "clip_norm" not in word)
# Name -> words that both sides have.
RULES: dict[str, tuple[str, ...]] = {
    "cnn": (*CNN, *UNCLIPPED, "microbatches=1"),
    "cnn, synchronised": (*CNN, *UNCLIPPED, "microbatches=1", "strategy.vertical_sync=true"),
    "cnn, steps of 2": (*CNN, *ADAPTIVE, "microbatches=2", SAVED),
    "cnn, two versions": (*CNN, *UNCLIPPED, "microbatches=4", "strategy.stash=two"),
    "normed": (*NORMED, "microbatches=2"),
    "gpt": (*GPT, "microbatches=1"),
    "lstm": (*OWN, "microbatches=1"),
}
WORLDS = {2: ("cnn", "cnn, steps of 2", "normed", "gpt", "lstm"), 4: tuple(RULES)[:4]}
AGAIN = {"normed": ("strategy.recompute=full",)}


def stages(count: int, name: str, *further: str, change: str | None = None) -> Case:
    words = ("strategy=pipedream", f"workers={count}", "strategy.partition=layers", *RULES[name])
    return Case(f"{name} on {count}{'' if change is None else f', {change}'}", (*words, *further), change)


def alone(count: int, name: str) -> Case:
    words = (*PLUGINS, "strategy=pipedream_rule", f"strategy.stages={count}", *RULES[name])
    return Case(f"{name} by the rule for {count}", words)


ALIKE = [(count, name) for count, names in WORLDS.items() for name in names]
WRONG = ("newest weights", "stale weight", "forgotten micro-batch")
CHANGED = [stages(2, "cnn, steps of 2", change=change) for change in WRONG]
RESUMED = Case(
    "gpipe after pipedream",
    ("strategy=pipeline", "workers=2", "strategy.partition=layers", *CNN, *ADAPTIVE, "microbatches=2"),
    resumes="cnn, steps of 2 on 2",
)
BEFORE = Case("one device after pipedream", RESUMED.words[3:], resumes="../2/cnn, steps of 2 on 2")
JOBS: parity.Jobs = {
    "alone": (tuple(alone(*each) for each in ALIKE), "single", 1),
    "2": ((*(stages(2, name, *AGAIN.get(name, ())) for name in WORLDS[2]), *CHANGED, RESUMED), "fsdp", 2),
    "4": (tuple(stages(4, name) for name in WORLDS[4]), "fsdp", 4),
}
LATER: parity.Jobs = {"again": ((BEFORE,), "single", 1)}


def train_cases(folder: Path) -> None:
    parity.train(JOBS, folder)
    parity.train(LATER, folder)


@pytest.fixture(scope="module")
def trained(cases: Path) -> dict[str, list[Outcome]]:
    return parity.outcomes(JOBS | LATER, cases)


@pytest.mark.parametrize(("count", "name"), ALIKE)
def test_losses_gradients_parameters_and_buffers_are_those_of_the_rule(
    trained: dict[str, list[Outcome]], count: int, name: str
) -> None:
    found, (expected,) = joined(trained[f"{name} on {count}"]), trained[f"{name} by the rule for {count}"]
    assert not differences(found, expected), gaps(found, expected)
    assert found.evaluation == pytest.approx(expected.evaluation, rel=1e-5)


@pytest.mark.parametrize("case", CHANGED, ids=lambda case: case.change)
def test_the_parity_check_fails_for(trained: dict[str, list[Outcome]], case: Case) -> None:
    (expected,) = trained["cnn, steps of 2 by the rule for 2"]
    assert {"losses", "parameters"} <= set(differences(joined(trained[case.name]), expected))


def test_a_checkpoint_goes_on_without_stale_weights(trained: dict[str, list[Outcome]]) -> None:
    (expected,) = trained[BEFORE.name]
    found = joined(trained[RESUMED.name])
    assert not differences(found, expected), gaps(found, expected)
