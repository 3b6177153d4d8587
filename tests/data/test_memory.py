"""A prepared dataset may be far larger than the memory in which a run trains on it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from src.machine.memory import memory_limit
from tests.data.test_preparation import tiles
from tests.support import ROOT

# Of a command and a rank with torch; less is too little for them alone.
LIMIT = 900 << 20
SIDE = 256
TIMES = 5
SAMPLES = TIMES * LIMIT // (3 * SIDE * SIDE) + 1
MOUNT = Path("/sys/fs/cgroup")


@pytest.fixture
def group() -> Iterator[Path]:
    """A cgroup of version 1 or 2 with the limit, or the test is skipped with the reason."""
    one, two = MOUNT / "memory", MOUNT / "cgroup.subtree_control"
    if two.exists():
        with contextlib.suppress(OSError):
            two.write_text("+memory")
    made = (one if one.exists() else MOUNT) / f"scaleguide-test-{os.getpid()}"
    try:
        made.mkdir()
        try:
            (made / ("memory.limit_in_bytes" if one.exists() else "memory.max")).write_text(str(LIMIT))
        except OSError:
            made.rmdir()
            raise
    except OSError as error:
        pytest.skip(f"no cgroup with a memory limit can be made here: {error}")
    yield made
    made.rmdir()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder whose content doesn't outlive the test, for it is large."""
    yield tmp_path
    shutil.rmtree(tmp_path)


def run_in(group: Path, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a Python command as a process of the cgroup."""
    enter = f"import os, sys; open({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))"
    return subprocess.run(
        [
            sys.executable,
            "-c",
            f"{enter}; os.execv(sys.executable, [sys.executable, *sys.argv[1:]])",
            *command,
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SCALEGUIDE_CACHE": str(folder / "cache")},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_the_limit_is_that_of_the_cgroup(group: Path, tmp_path: Path) -> None:
    code = "from src.machine.memory import memory_limit; print(memory_limit())"
    assert run_in(group, tmp_path, "-c", code).stdout == f"{LIMIT}\n"
    assert memory_limit() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.slow
def test_a_dataset_five_times_the_memory_is_prepared_and_trained_on(group: Path, folder: Path) -> None:
    (folder / "conf" / "dataset").mkdir(parents=True)
    dataset = tiles(folder, samples=SAMPLES, side=SIDE) | {"limit": None, "test_limit": None}
    (folder / "conf" / "dataset" / "tiles.yaml").write_text(json.dumps(dataset))
    completed = run_in(
        group,
        folder,
        "-m",
        "src.train",
        "--config-dir",
        str(folder / "conf"),
        "dataset=tiles",
        "out=run",
        "model=custom",
        "model.path=tests.data.strided.build",
        "batch=64",
        "max_minutes=0.4",
        *(
            "optimizer.lr=0.0001",
            "hardware.device=cpu",
            "hardware.share_devices=true",
            "tracking.backend=none",
        ),
    )
    assert completed.returncode == 0, completed.stderr
    metrics = json.loads((folder / "run" / "metrics.json").read_text())
    assert metrics["status"] in ("ok", "time_limit"), completed.stderr
    files = list((folder / "cache" / "prepared").glob("tiles-*/train-inputs-0-*.npy"))
    assert sum(file.stat().st_size for file in files) >= TIMES * LIMIT
    # More than memory holds: what was read first has made room for the rest.
    assert metrics["epochs"] * SAMPLES * 3 * SIDE * SIDE > LIMIT
