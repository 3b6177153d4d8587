"""Whatever ends a run early, nobody stays behind and what was recorded stays."""

from __future__ import annotations

import contextlib
import csv
import json
import signal
import sqlite3
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from src.run.files import READY
from tests.support import fill, mounted

# From the event to the end of the command.
SECONDS = 10.0
# Until a run trains, on a busy machine.
START = 120.0
LONG = ("model=cnn", "epochs=1000", "max_minutes=30", "hardware.device=cpu", "hardware.share_devices=true")
# By default the job would be started again.
ENDING = ("workers=2", "strategy.max_restarts=0", *LONG)
DDP = ("strategy=ddp", *ENDING)
PLUGIN = Path(__file__).parent / "plugin" / "conf"
MPI = ("strategy=mpi", *ENDING)
PAIRS = pytest.mark.parametrize(
    "pair", [pytest.param(DDP, id="ddp"), pytest.param(MPI, id="mpi", marks=pytest.mark.slow)]
)
Until = Callable[[Callable[[], object], float, str], float]


@pytest.fixture
def training(commands, until: Until) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a run into `run` and returns once all of its ranks have recorded steps."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: str, out: str = "run", first: str = "") -> subprocess.Popen[bytes]:
        process = commands.start(*words, f"out={out}")
        started.append(process)
        ranks = range(2 if "workers=2" in words else 1)
        files = [commands.folder / (first or out) / "ranks" / str(rank) / "steps.csv" for rank in ranks]

        def rows() -> bool:
            assert process.poll() is None, commands.output()
            return all(file.exists() and file.read_bytes().count(b"\n") > 3 for file in files)

        until(rows, START, "the first steps")
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def steps(folder: Path) -> list[dict[str, str]]:
    with (folder / "steps.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def orphaned_memory() -> set[Path]:
    """Shared memory that has a name still, and nobody who uses it."""
    named = {path for name in ("scaleguide-*", "mpich_*") for path in Path("/dev/shm").glob(name)}
    for maps in Path("/proc").glob("[0-9]*/maps"):
        # Another process may be gone by now.
        with contextlib.suppress(OSError):
            used = maps.read_text()
            named = {path for path in named if str(path) not in used}
    return named


@PAIRS
def test_a_killed_rank_ends_the_run_and_is_named(
    commands, training, until: Until, mnist: None, pair: tuple[str, ...]
) -> None:
    before = orphaned_memory()
    process = training(*pair, "tracking.backend=none")
    commands.rank(1).kill()
    until(lambda: process.poll() is not None, SECONDS, "the command's end")
    assert process.returncode == 1
    err = commands.output()[1]
    assert "rank 1 was killed by SIGKILL" in err
    assert "its log is run/logs/rank-1.log" in err
    assert "Traceback" not in err.splitlines()[0]
    assert commands.left() == []
    assert orphaned_memory() <= before
    metrics = json.loads((commands.folder / "run" / "metrics.json").read_text())
    assert (metrics["status"], metrics["accuracy"]) == ("failed", None)
    assert {row["rank"] for row in steps(commands.folder / "run")} == {"0", "1"}


@pytest.mark.parametrize(
    ("pair", "number", "backend"),
    [
        pytest.param(DDP, signal.SIGINT, "sqlite", id="SIGINT", marks=pytest.mark.slow),
        pytest.param(DDP, signal.SIGTERM, "none", id="SIGTERM"),
        pytest.param(MPI, signal.SIGINT, "none", id="mpi-SIGINT", marks=pytest.mark.slow),
        pytest.param(MPI, signal.SIGTERM, "none", id="mpi-SIGTERM", marks=pytest.mark.long),
    ],
)
def test_an_interrupted_run_keeps_its_records_and_leaves_nobody(
    commands,
    training,
    until: Until,
    mnist: None,
    pair: tuple[str, ...],
    number: signal.Signals,
    backend: str,
) -> None:
    process = training(*pair, f"tracking.backend={backend}")
    if backend == "sqlite":
        # Ranks don't wait for the tables of a new store, which take seconds.
        until(lambda: _is_tracked(commands.folder), 60, "the run in MLflow")
    process.send_signal(number)
    until(lambda: process.poll() is not None, SECONDS, "the command's end")
    assert process.returncode == 130
    assert commands.left() == []
    err = commands.output()[1]
    assert "interrupted; what was recorded is in run" in err
    assert "Traceback" not in err
    recorded = steps(commands.folder / "run")
    assert {row["rank"] for row in recorded} == {"0", "1"}
    assert [int(row["step"]) for row in recorded if row["rank"] == "0"][:3] == [1, 2, 3]
    if backend == "none":
        assert not (commands.folder / "mlflow.db").exists()
        return
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{commands.folder}/mlflow.db")
    experiment = client.get_experiment_by_name("scaleguide")
    assert [run.info.status for run in client.search_runs([experiment.experiment_id])] == ["KILLED"]


def _is_tracked(folder: Path) -> bool:
    """Return whether the store in `folder` has a run."""
    with contextlib.suppress(sqlite3.Error):
        store = sqlite3.connect(f"file:{folder}/mlflow.db?mode=ro", uri=True)
        with contextlib.closing(store):
            return bool(store.execute("select count(*) from runs").fetchone()[0])
    return False


@pytest.mark.slow
def test_an_interrupted_sweep_starts_no_further_cell(commands, training, until: Until, mnist: None) -> None:
    process = training(*LONG, "tracking.backend=none", "-m", "seed=0,1", out="run-${seed}", first="run-0")
    process.send_signal(signal.SIGINT)
    until(lambda: process.poll() is not None, SECONDS, "the command's end")
    assert process.returncode == 130
    assert commands.left() == []
    assert steps(commands.folder / "run-0")
    assert not (commands.folder / "run-1").exists()


@PAIRS
def test_ranks_die_with_their_parent(
    commands, training, until: Until, mnist: None, pair: tuple[str, ...]
) -> None:
    process = training(*pair, "tracking.backend=none")
    assert len([p for p in commands.left() if p.name().startswith("rank-")]) == 2
    process.kill()
    process.wait()
    until(lambda: commands.left() == [], SECONDS, "the ranks' end")
    assert len((commands.folder / "run/ranks/0/steps.csv").read_text().splitlines()) > 3


# Under a bound the others would stand still after a few steps.
BOUND = ("strategy=parameter_server", "strategy.mode=ssp", "strategy.max_restarts=0", "workers=2", *LONG)


@pytest.mark.slow
def test_nobody_waits_for_a_worker_that_never_came(commands, until: Until, mnist: None) -> None:
    process = commands.start(*BOUND, "tracking.backend=none", "out=run")

    def kill() -> bool:
        with contextlib.suppress(LookupError):
            commands.rank(1).kill()
            return True
        return False

    until(kill, START, "the second worker")
    until(lambda: process.poll() is not None, START, "the command's end")
    assert process.returncode == 1
    assert commands.left() == []
    assert "error: rank 1 was killed by SIGKILL" in commands.output()[1]


@pytest.mark.slow
def test_others_go_on_without_a_worker_that_came_and_did_nothing(commands, until: Until, mnist: None) -> None:
    process = commands.start(*BOUND, "tracking.backend=none", "out=run")
    ranks = commands.folder / "run" / "ranks"
    until((ranks / "1" / READY).exists, START, "the second worker")
    commands.rank(1).kill()

    def steps_of_the_other() -> bool:
        assert process.poll() is None, commands.output()
        path = ranks / "0" / "steps.csv"
        return path.exists() and path.read_bytes().count(b"\n") > 50

    until(steps_of_the_other, START, "fifty steps of the first worker")
    process.send_signal(signal.SIGTERM)
    until(lambda: process.poll() is not None, SECONDS, "the command's end")
    assert commands.left() == []


@pytest.fixture
def small_disk(commands) -> Iterator[Path]:
    """A file system of a megabyte; only root may mount one."""
    with mounted(commands.folder / "disk", "size=1m") as place:
        yield place
        commands.end()


@pytest.mark.slow
def test_a_full_disk_ends_the_run_and_is_named(
    commands, training, until: Until, mnist: None, small_disk: Path
) -> None:
    (small_disk / "kept.txt").write_text("from before\n")
    words = ("model=mlp", "epochs=1000", "max_minutes=30", "batch=4", "tracking.backend=none")
    process = training(*words, out="disk/run")
    recorded = (small_disk / "run/ranks/0/steps.csv").read_text().rpartition("\n")[0]
    fill(small_disk, leave=16 * 1024)
    until(lambda: process.poll() is not None, START, "the command's end")
    assert process.returncode == 1
    assert commands.left() == []
    err = commands.output()[1]
    assert f"the file system at {small_disk} is full" in err
    assert "Traceback" not in err.replace("| Traceback", "")
    assert (small_disk / "kept.txt").read_text() == "from before\n"
    assert (small_disk / "run/ranks/0/steps.csv").read_text().startswith(recorded)
    # With room, the same command is accepted: nothing half-written is in its way.
    (small_disk / "filler").unlink()
    again = commands.run(
        "model=mlp",
        "epochs=1000",
        "batch=4",
        "tracking.backend=none",
        "out=disk/run",
        "overwrite=true",
        SCALEGUIDE_MAX_MINUTES="0.001",
    )
    assert again.returncode == 0, again.stderr


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_a_disk_without_room_for_a_checkpoint_is_named_and_keeps_the_last_one(
    commands, mnist: None, small_disk: Path, framework: str
) -> None:
    # Model and momentum take 800 kB, so that a second checkpoint beside the first one has no room.
    completed = commands.run(
        "strategy=single" if framework == "torch" else "strategy=tf_single",
        "model=mlp",
        "out=disk/run",
        "checkpoint_every=5",
        "epochs=1000",
        "max_minutes=30",
        "tracking.backend=none",
    )
    assert completed.returncode == 1
    assert commands.left() == []
    first, *_ = completed.stderr.splitlines()
    assert first.startswith(f"error: the file system at {small_disk} is full")
    assert "Traceback" not in completed.stderr.replace("| Traceback", "")
    (checkpoint,) = (small_disk / "run").glob("checkpoint.*")
    with zipfile.ZipFile(checkpoint) as whole:
        assert whole.testzip() is None
    assert [path.name for path in (small_disk / "run").iterdir() if path.name.endswith(".writing")] == []
    assert int(steps(small_disk / "run")[-1]["step"]) >= 5


@pytest.mark.slow
def test_a_disk_that_is_full_from_the_start_is_named(commands, mnist: None, small_disk: Path) -> None:
    fill(small_disk, leave=0)
    completed = commands.run("model=mlp", "out=disk/run", "tracking.backend=none")
    assert completed.returncode == 1
    assert completed.stderr.startswith(f"error: the file system at {small_disk} is full")
    assert len(completed.stderr.splitlines()) == 1
    (small_disk / "filler").unlink()
    again = commands.run(
        *("model=mlp", "out=disk/run", "tracking.backend=none"), SCALEGUIDE_MAX_MINUTES="0.001"
    )
    assert again.returncode == 0, again.stderr


def test_data_that_nobody_gives_are_one_sentence(commands, tmp_path: Path) -> None:
    absent = tmp_path / "conf" / "dataset" / "absent.yaml"
    absent.parent.mkdir(parents=True)
    absent.write_text(
        yaml.safe_dump(
            {
                "name": "absent",
                "reader": "src.data.readers.idx.read",
                "source": "original",
                "files": {"train-images-idx3-ubyte": "0" * 64},
                # A port that is reserved, so that nobody listens there.
                "sources": [{"url": "http://127.0.0.1:1/{file}"}, {"path": "/nowhere/{file}"}],
                "options": {},
                "limit": None,
            }
        )
    )
    completed = commands.run(
        *("--config-dir", str(tmp_path / "conf"), "dataset=absent"), SCALEGUIDE_CACHE=str(tmp_path / "cache")
    )
    assert (completed.returncode, completed.stdout) == (1, "")
    assert "Traceback" not in completed.stderr
    last = completed.stderr.splitlines()[-1]
    assert last.startswith("error: absent: train-images-idx3-ubyte could not be fetched from any source")
    assert "127.0.0.1" in last and "/nowhere" in last
    assert commands.left() == []
    assert list(commands.folder.rglob("*")) == []


@pytest.mark.slow
def test_a_run_that_hangs_is_ended_at_its_limit(commands, mnist: None) -> None:
    completed = commands.run(
        "--config-dir",
        str(PLUGIN),
        "strategy=sleeping",
        "model=mlp",
        "tracking.backend=none",
        "max_minutes=0.001",
        "hardware.grace_minutes=0.1",
        "out=run",
    )
    assert completed.returncode == 1
    assert "longer than its wall-clock limit" in completed.stderr
    # After five seconds it says what takes so long; the rest is one line.
    assert len([line for line in completed.stderr.splitlines() if not line.startswith("  ")]) == 1
    assert (commands.folder / "run/logs/rank-0.log").read_text() == "asleep\n"
    assert json.loads((commands.folder / "run/metrics.json").read_text())["status"] == "failed"
    assert commands.left() == []
