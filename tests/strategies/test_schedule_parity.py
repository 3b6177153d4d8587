"""Under every schedule of several stages a rank a model computes what one device computes.

Ten float64 steps, to 1e-9, buffers included; the reference is `single` with as many micro-batches.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.strategies import parity
from tests.strategies.meshes import hybrid
from tests.strategies.parity import CNN, GPT, SAVED, TERMS, Case, Outcome, differences, gaps, joined

pytestmark = pytest.mark.slow

SCHEDULES = ("looped_bfs", "interleaved", "zero_bubble", "zbv", "dualpipe_v")
NORMED = ("model=custom", "model.path=tests.plugin.model.tiny.residual", "batch=32")
ENDS = ("model=custom", "model.path=tests.plugin.model.tied.build", "batch=32")
ALIKE = ("model=custom", "model.path=tests.plugin.model.tiny.alike", "batch=32")
MODELS = {"alike": ALIKE, "cnn": (*CNN, *TERMS), "normed": NORMED, "ends": ENDS, "gpt": GPT}
# Of a V's four stages, rank 1 has those two that could take each other's place.
EQUAL = "strategy.partition=[second,third,last]"
# As many as dualpipe_v asks for, of eight stages.
EIGHT = ("microbatches=8",)


def pipeline(workers: int, schedule: str, *words: str) -> tuple[str, ...]:
    return ("strategy=pipeline", f"workers={workers}", f"strategy.schedule={schedule}", *words)


SINGLE = (
    *(Case(name, (*words, *EIGHT)) for name, words in MODELS.items()),
    Case("cnn-m4", (*CNN, *TERMS, "microbatches=4")),
)
# A case's name begins with its reference's.
TWO = (
    *(Case(f"cnn, {each}", (*pipeline(2, each), *CNN, *TERMS, *EIGHT, SAVED)) for each in SCHEDULES),
    # The block's input passes stages that don't read it, two of them on one rank.
    *(
        Case(
            f"normed, {each}",
            (*pipeline(2, each, "strategy.partition=[3.bn1,3.second,3.bn2]"), *NORMED, *EIGHT),
        )
        for each in ("interleaved", "zbv")
    ),
    Case(
        "normed, interleaved, computed again",
        (*pipeline(2, "interleaved", "strategy.recompute=full"), *NORMED, *EIGHT),
    ),
    *(
        Case(f"gpt, {each}", (*pipeline(2, each, "strategy.partition=layers"), *GPT, *EIGHT))
        for each in ("zero_bubble", "dualpipe_v")
    ),
    # A loop's stages 0 and 2 share a weight, and are on one rank; a V's are on both.
    *(
        Case(
            f"ends, {each}",
            (*pipeline(2, each, "strategy.tied=reduce", "strategy.partition=layers"), *ENDS, *EIGHT),
        )
        for each in ("interleaved", "zbv")
    ),
    Case("alike, zbv", (*pipeline(2, "zbv", EQUAL), *ALIKE, *EIGHT)),
    Case("cnn-m4, one stage each", (*pipeline(2, "zero_bubble", "strategy.virtual_stages=1"), *CNN, *TERMS)),
)
FOUR = (
    *(Case(f"cnn, {each} on 4", (*pipeline(4, each), *CNN, *TERMS, *EIGHT)) for each in SCHEDULES),
    Case(
        "cnn, copies of interleaved stages",
        (
            "workers=4",
            *hybrid(pipeline=2, microbatches=4),
            "strategy.schedule=interleaved",
            *CNN,
            *TERMS,
        ),
    ),
)
WRONG = tuple(
    Case(f"cnn, {change}", (*pipeline(2, "zero_bubble"), *CNN, *TERMS, *EIGHT), change)
    for change in ("stale weight", "missing weight backward")
)
SWAPPED = Case("alike, swapped stages", (*pipeline(2, "zbv", EQUAL), *ALIKE, *EIGHT), "swapped stages")
RESUMED = tuple(
    Case(f"{kind} after {other}", (*pipeline(2, kind), *CNN, *TERMS, *EIGHT), resumes=f"cnn, {other}")
    for kind, other in (("zbv", "interleaved"), ("looped_bfs", "zbv"), ("gpipe", "dualpipe_v"))
)
JOBS = {
    "alone": (SINGLE, "single", 1),
    "2": ((*TWO, *WRONG, SWAPPED, *RESUMED), "fsdp", 2),
    "4": (FOUR, "fsdp", 4),
}
AGAIN = Case("one device after zbv", (*CNN, *TERMS, *EIGHT), resumes="../2/cnn, zbv")
LATER = {"again": ((AGAIN,), "single", 1)}


def train_cases(folder: Path) -> None:
    """Starting processes costs more than training, so each number of them starts once."""
    parity.train(JOBS, folder)
    parity.train(LATER, folder)


@pytest.fixture(scope="module")
def trained(cases: Path) -> dict[str, list[Outcome]]:
    return parity.outcomes(JOBS | LATER, cases)


def whole(outcomes: list[Outcome], case: Case) -> list[Outcome]:
    """Each copy of the model, joined of its ranks' stages."""
    apart = 2 if "copies" in case.name else 1
    shared = "encoder.weight" if case.name == "ends, zbv" else None
    return [joined(outcomes[copy::apart], shared=shared) for copy in range(apart)]


@pytest.mark.parametrize("case", [*TWO, *FOUR], ids=lambda case: case.name)
def test_losses_gradients_parameters_and_buffers_are_those_of_one_device(
    trained: dict[str, list[Outcome]], case: Case
) -> None:
    expected = trained[case.name.partition(",")[0]][0]
    for copy in whole(trained[case.name], case):
        assert not differences(copy, expected), gaps(copy, expected)
    assert trained[case.name][0].evaluation == pytest.approx(expected.evaluation, rel=1e-5)


@pytest.mark.parametrize("case", [*WRONG, SWAPPED], ids=lambda case: case.name)
def test_the_parity_check_fails_for_a(trained: dict[str, list[Outcome]], case: Case) -> None:
    (expected,) = trained[case.name.partition(",")[0]]
    assert {"losses", "parameters"} <= set(differences(whole(trained[case.name], case)[0], expected))


@pytest.mark.parametrize("case", [*RESUMED, AGAIN], ids=lambda case: case.name)
def test_a_checkpoint_of_one_schedule_goes_on_under_another(
    trained: dict[str, list[Outcome]], case: Case
) -> None:
    (found,) = [trained[case.name][0]] if case is AGAIN else whole(trained[case.name], case)
    expected = dataclasses.replace(trained["cnn"][0], losses=trained["cnn"][0].losses[5:])
    assert not differences(found, expected), gaps(found, expected)
