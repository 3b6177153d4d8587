"""Workers of unequal speed, as real processes under a CPU quota: shares follow what the devices can do."""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from src.machine import quota
from src.machine.devices import usable_cores

pytestmark = pytest.mark.slow

Until = Callable[[Callable[[], object], float, str], float]
START = 120.0
# Within so many steps a change of load is followed.
FOLLOWED = 50
TRIES = 4
WORDS = (
    "strategy=ddp", "workers=2", "model=cnn", "batch=128", "epochs=100", "batch_shares=auto",
    "hardware.device=cpu", "tracking.backend=none", "out=run",
)  # fmt: skip


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


def followed(slow: int, fast: int) -> bool:
    """A fifth of the batch or so, for a step costs something whatever its share; then half, or more.

    A neighbour on the first worker's core gives the second one up to three quarters.
    """
    return 0 < slow <= 40 and 45 <= fast <= 96


def test_a_slower_device_gets_less_and_a_change_of_load_is_followed(
    commands, training, groups: quota.Groups, until: Until
) -> None:
    process = training("hardware.speeds=[1.0,0.25]")

    def share_after(steps: int) -> int:
        """The second worker's, once so many steps are on disk and a few more."""

        def reached() -> bool:
            assert process.poll() is None, commands.output()
            return len(samples(commands.folder, 1)) >= steps + 10

        until(reached, START, f"{steps} steps")
        return samples(commands.folder, 1)[steps]

    def share_at(speed: float) -> int:
        """The same when that speed has been followed."""
        (group,) = groups.folder.glob(f"{quota.PREFIX}{process.pid}-1")
        quota.set_quota(group, groups.version, *quota.quota_of(speed, 1))
        return share_after(len(samples(commands.folder, 1)) + FOLLOWED)

    tries = [(share_after(FOLLOWED), share_at(1.0))]
    # A neighbour on the machine is a load as well, and is followed like any other: the best try counts.
    while not followed(*tries[-1]) and len(tries) < TRIES:
        tries.append((share_at(0.25), share_at(1.0)))
    assert followed(*tries[-1]), tries
    pair = [samples(commands.folder, rank) for rank in (0, 1)]
    assert pair[1][0] == 64
    assert all(a + b == 128 for a, b in zip(*pair, strict=False))
    process.terminate()
    process.wait()
    assert commands.left() == []
    assert not list(groups.folder.glob(f"{quota.PREFIX}{process.pid}-*"))
