"""Workers of unequal speed, as real processes under a CPU quota: shares follow what the devices can do."""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from src.launch import quota
from src.launch.devices import usable_cores

Until = Callable[[Callable[[], object], float, str], float]
START = 120.0
# Within so many steps a change of load is followed.
FOLLOWED = 50
WORDS = (
    *("strategy=ddp", "workers=2", "model=cnn", "batch=128", "epochs=100", "batch_shares=auto"),
    *("hardware.device=cpu", "tracking.backend=none", "out=run"),
)


@pytest.fixture
def groups() -> quota.Groups:
    if len(usable_cores()) < 2:
        pytest.skip("two cores are needed")
    try:
        return quota.find()
    except quota.NotAllowed as error:
        pytest.skip(str(error))


@pytest.fixture
def training(commands, mnist: None) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: str) -> subprocess.Popen[bytes]:
        started.append(commands.start(*WORDS, *words))
        return started[-1]

    yield start
    for process in started:
        process.terminate()
        process.wait()


def samples(folder: Path, rank: int) -> list[int]:
    """Of the steps that are on disk."""
    path = folder / "run" / "ranks" / str(rank) / "steps.csv"
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [int(row["samples"]) for row in csv.DictReader(file) if row.get("staleness") is not None]


def test_a_slower_device_gets_less_and_a_change_of_load_is_followed(
    commands, training, groups: quota.Groups, until: Until
) -> None:
    process = training("hardware.speeds=[1.0,0.25]")

    def reached(steps: int) -> bool:
        assert process.poll() is None, commands.said()
        return len(samples(commands.folder, 1)) >= steps

    until(lambda: reached(FOLLOWED + 10), START, "the first steps")
    slow = samples(commands.folder, 1)
    # A fifth of the batch, but for what a step costs whatever its share.
    assert slow[0] == 64
    assert 10 <= slow[FOLLOWED] <= 40, slow

    (group,) = groups.folder.glob(f"{quota.PREFIX}{process.pid}-1")
    quota.set_quota(group, groups.version, *quota.quota(1.0, 1))
    changed = len(samples(commands.folder, 1))
    until(lambda: reached(changed + FOLLOWED + 10), START, "the steps after the change")
    pair = [samples(commands.folder, rank) for rank in (0, 1)]
    assert 45 <= pair[1][changed + FOLLOWED] <= 83, pair[1][changed:]
    assert all(a + b == 128 for a, b in zip(*pair, strict=False))
    process.terminate()
    process.wait()
    assert commands.left() == []
    assert not group.exists()
