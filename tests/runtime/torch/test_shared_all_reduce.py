"""Averages through shared memory are the process group's, with the same bits on every rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from src.launch.spawn import KEEP_FREED_MEMORY
from tests.support import run_ranks


@pytest.mark.parametrize("world", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_the_mean_of_any_size_is_glooes_bit_identical_on_all_ranks_and_leaves_no_file(
    world: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As the launcher starts ranks; three of them on two cores must give way to each other.
    for name, value in KEEP_FREED_MEMORY.items():
        monkeypatch.setenv(name, value)
    run_ranks("tests.runtime.torch.all_reduce_rank", [], world=world, logs=tmp_path, limit=90)
    logs = [path.read_text() for path in tmp_path.glob("*.log")]
    assert len(logs) == world and all("agreed" in log for log in logs)
