"""Stages whose transfers go through the host compute what others do, to the last bit."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml

from tests.support import config, run_ranks

WORDS = (
    "model=cnn",
    "batch=16",
    "microbatches=4",
    "workers=2",
    "dataset.limit=128",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    [
        ("strategy=pipeline", "strategy.schedule=zbv"),
        ("strategy=pipeline", "strategy.schedule=1f1b"),
        ("strategy=model_split",),
        ("strategy=pipedream",),
    ],
    ids=" ".join,
)
def test_transfers_through_the_host(strategy: tuple[str, ...], tmp_path: Path, mnist: None) -> None:
    # By numbers of operations, so that the cut is no matter of time.
    chosen = config(*strategy, *WORDS, "strategy.partition=layers", "dataset.test_limit=300")
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(dataclasses.asdict(chosen)))
    run_ranks("tests.runtime.torch.staged_rank", [path], world=2, logs=tmp_path)
