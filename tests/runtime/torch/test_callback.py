"""What ranks tell each other between steps makes nobody wait, and a rank's own time has no waiting in it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml

from tests.support import config, run_ranks

pytestmark = pytest.mark.timed

WORDS = ("strategy=ddp", "workers=2", "model=mlp", "batch=32", "dataset.limit=320", "dataset.test_limit=64")


def test_the_agreement_to_go_on_is_no_barrier_and_a_ranks_own_time_has_its_optimizer_but_not_its_waiting(
    tmp_path: Path, mnist: None
) -> None:
    paths = []
    for all_reduce in ("shared_memory", "backend"):
        paths.append(tmp_path / f"{all_reduce}.yaml")
        chosen = config(*WORDS, "batch_shares=auto", f"strategy.all_reduce={all_reduce}")
        paths[-1].write_text(yaml.safe_dump(dataclasses.asdict(chosen)))
    run_ranks("tests.runtime.torch.callback_rank", paths, world=2, logs=tmp_path, limit=90)
    logs = [log.read_text() for log in tmp_path.glob("*.log")]
    assert len(logs) == 2 and all("agreed" in log for log in logs)
