"""Averages through shared memory are the process group's, with the same bits on every rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from src.config import ConfigError
from src.launch.spawn import KEEP_FREED_MEMORY
from tests.conftest import Commands
from tests.support import config, run_ranks


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


@pytest.mark.parametrize("failing", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_without_shared_memory_all_ranks_use_the_process_group_and_one_says_so(
    failing: int, tmp_path: Path
) -> None:
    run_ranks("tests.runtime.torch.all_reduce_rank", [str(failing)], world=2, logs=tmp_path, limit=90)
    logs = [path.read_text() for path in sorted(tmp_path.glob("*.log"))]
    reason = "a rank can't map it" if failing else "No space left on device"
    # The two instances of each rank.
    assert logs[0].count(f"no shared memory ({reason}): the ranks average by gloo") == 2
    assert "no shared memory" not in logs[1]


def test_asked_for_where_it_cannot_be_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ("strategy=ddp", "workers=2", "strategy.all_reduce=shared_memory")
    with pytest.raises(ConfigError, match=r"^hardware.device=gpu: strategy.all_reduce=shared_memory needs"):
        config(*asked, "hardware.device=gpu")
    config(*asked)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(
        ConfigError, match=r"^machine=aarch64: .*all_reduce=shared_memory needs machine=x86_64"
    ):
        config(*asked)
    config("strategy=ddp", "workers=2")


@pytest.mark.slow
def test_four_workers_train_in_a_container_s_64_mb(mnist: None, commands: Commands) -> None:
    small = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"', "sh"]
    if os.geteuid():
        small.insert(1, "--map-root-user")
    tried = subprocess.run([*small, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no mount namespace can be made here: {tried.stderr.strip()}")
    words = ("strategy=ddp", "workers=4", "model=mlp", "model.hidden=4000", "dataset.limit=1280", "out=run")
    further = ("hardware.device=cpu", "hardware.share_devices=true", "tracking.backend=none")
    # Ranks that are forked by a server outside would be outside, too.
    commands.forks = False
    commands.python = [*small, sys.executable]
    completed = commands.run(*words, *further)
    assert completed.returncode == 0, completed.stderr
    assert json.loads((commands.folder / "run/metrics.json").read_text())["status"] == "ok"
    # It didn't fall back to the process group.
    assert "no shared memory" not in completed.stderr
