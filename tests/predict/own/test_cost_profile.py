"""Profiles that don't go with what is asked of them, and files that are none: a line each."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from src.config import ConfigError
from src.predict.own import cost_profile, steps
from src.predict.own.constants import Constants
from src.predict.own.cost_profile import Profile
from tests.predict.own import made
from tests.support import config

WORDS = ("strategy=ddp", "model=mlp", "dataset=synthetic", "workers=2", "batch=8")


def known(*words: str) -> Profile:
    return made.profile(made.steps_point(config(*WORDS, *words), 0.5))


def test_what_was_profiled_is_predicted() -> None:
    # Half a second for each of the rank's four samples, 1 s of exchange as by itself, and 1 s of update.
    found = steps.of(config(*WORDS), known()).parts(Constants(beside=1.0, straggling=0.0, shared_memory=1.0))
    assert (found.compute, found.exchange) == pytest.approx((3.0, 1.0))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("model=cnn", "dataset=mnist"), "has no model=cnn, but mlp"),
        (("precision=bf16",), "model=mlp was profiled with precision=fp32, not with precision=bf16"),
        (("workers=4",), "model=mlp was profiled with workers=2, not with workers=4"),
        (("strategy=fsdp",), "model=mlp was profiled with strategy=ddp, not with strategy=fsdp"),
        (
            ("strategy.bucket_mb=1",),
            "model=mlp was profiled with strategy.bucket_mb=25, not with strategy.bucket_mb=1;",
        ),
        (("microbatches=2",), "model=mlp was profiled with microbatches=1, not with microbatches=2"),
        (("strategy=pipeline",), "has nothing of model=mlp for strategy=pipeline; profile that, too"),
        (
            ("batch=16",),
            "micro-batches of 4 samples were profiled, not of 8; profile these, or sizes around it",
        ),
        (("hardware=lan",), "model=mlp was profiled with across_hosts=false, not with across_hosts=true"),
        (("strategy=sandblaster_lbfgs",), "strategy=sandblaster_lbfgs: its steps can't be predicted yet"),
        (
            ("strategy=local_sgd",),
            "model=mlp wasn't profiled for strategy=local_sgd, workers=2, batch=8, micro",
        ),
        (
            ("strategy=mpi",),
            "model=mlp wasn't profiled for strategy=mpi, workers=2, batch=8, microbatches=1;",
        ),
        (
            ("strategy=hybrid", "workers=4", "strategy.pipeline=2", "strategy.tensor=2"),
            "strategy=hybrid: stages of parts can't be predicted yet",
        ),
        (("optimizer.momentum=0",), "model=mlp was profiled with momentum=true, not with momentum=false"),
    ],
)
def test_another_run_than_was_profiled_is_a_line(words: tuple[str, ...], says: str) -> None:
    kept = [
        word for word in WORDS if word.partition("=")[0] not in {each.partition("=")[0] for each in words}
    ]
    with pytest.raises(ConfigError, match=re.escape(says)):
        steps.of(config(*kept, *words), known()).parts(Constants())


def test_code_that_has_changed_is_a_line() -> None:
    profile = known()
    old = dataclasses.replace(profile, points=(dataclasses.replace(profile.points[0], code="other"),))
    with pytest.raises(ConfigError, match="model=mlp was computed by other code than there is now; make it"):
        steps.of(config(*WORDS), old)


def test_a_profile_that_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    known().write(path)
    assert cost_profile.read(path) == cost_profile.read(tmp_path) == known()


def test_what_is_measured_again_counts_too_unless_the_code_has_changed() -> None:
    point = known().points[0]
    twice = known().with_point(point)
    assert len(twice.points) == 1 and len(twice.points[0].ranks) == 2
    changed = twice.with_point(dataclasses.replace(point, code="new"))
    assert len(changed.points) == 1 and len(changed.points[0].ranks) == 1
    assert len(twice.with_point(dataclasses.replace(point, microbatch=9)).points) == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "can't be read: No such file or directory; `python -m src.profile model=...` makes one"),
        ("", "is no profile"),
        ("{}", "is no profile"),
        ('{"version": 1, "points": [{"a": 1}], "exchanges": []}', "is no profile"),
        ('{"version": 99}', "is a profile of version 99; make it again"),
    ],
)
def test_a_file_that_is_none_is_a_line(text: str | None, says: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=re.escape(f"{path}: {says}")):
        cost_profile.read(path)
