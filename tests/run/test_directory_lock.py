"""One command at a time writes to a directory, by whatever path; another one is told so."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from src.config import Config, ConfigError, command_line, compose
from src.config.slurm import JOB
from src.run.directory import RunDirectory
from src.run.directory_lock import Reservation, reserve
from tests.conftest import Commands
from tests.support import holder

Make = Callable[..., Config]
Hold = Callable[[str], subprocess.Popen[str]]
# Reserves a directory until its input ends.
HOLDER = """
import sys
from pathlib import Path
from src.run.directory_lock import Reservation
reservation = Reservation()
assert reservation.add(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
reservation.close()
"""
LONG = ("model=mlp", "hardware.device=cpu", "tracking.backend=none", "epochs=1000", "max_minutes=30")
SHORT = ("model=mlp", "hardware.device=cpu", "tracking.backend=none", "dataset.limit=1280")
FREE = "hardware.share_devices=true"


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A configuration whose `out` is `run`, in a folder of the test's own."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (config,) = compose.cells(command_line.parse(["hardware.device=cpu", "out=run"]))
    return lambda **changed: dataclasses.replace(config, **changed)


@pytest.fixture
def hold() -> Iterator[Hold]:
    """Starts a process that has reserved a directory."""
    with contextlib.ExitStack() as stack:
        yield lambda out: stack.enter_context(holder("-c", HOLDER, out))


@pytest.fixture
def made() -> Iterator[Callable[[list[Config]], Reservation]]:
    """Reserves directories until the end of the test."""
    with contextlib.ExitStack() as stack:

        def call(cells: list[Config]) -> Reservation:
            reservation = reserve(cells)
            stack.callback(reservation.close)
            return reservation

        yield call


def files() -> list[str]:
    return sorted(str(path) for path in Path().rglob("*"))


def test_a_directory_that_another_command_writes_is_refused_by_all_its_paths(make: Make, hold: Hold) -> None:
    Path("deep").mkdir()
    Path("deep/link").symlink_to(Path("../run"))
    Path("elsewhere").symlink_to("deep")
    other = hold("run")
    before = files()
    for out in ("run", str(Path("run").absolute()), "deep/../run", "deep/link", "elsewhere/link"):
        with pytest.raises(ConfigError, match=rf"^out={out}: is being written by pid {other.pid} \(.*; wait"):
            reserve([make(out=out, overwrite=True)])
    assert files() == before
    other.communicate()
    Path("run").mkdir()
    reserve([make(out="deep/link")]).close()
    assert files() == sorted({*before, "run"} - {".run.lock"})


def test_a_directory_is_free_again_when_its_command_is_killed(make: Make, hold: Hold, made: Callable) -> None:
    other = hold("run")
    os.kill(other.pid, signal.SIGKILL)
    other.wait()
    assert Path(".run.lock").exists()
    made([make()]).close()
    assert files() == []


def test_a_job_writes_where_the_command_that_has_submitted_it_has_reserved(
    make: Make, hold: Hold, made: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(JOB, "folder")
    other = hold("run")
    made([make()]).close()
    other.communicate()
    # Without that command the job's own reservation keeps others out.
    assert made([make()]).holds(Path("run"))


def test_a_run_that_is_being_written_is_not_resumed(make: Make, hold: Hold) -> None:
    RunDirectory.claim(make(out="first"))
    Path("first/checkpoint.pt").touch()
    hold("first")
    with pytest.raises(ConfigError, match=r"^resume=first/checkpoint.pt: is being written by pid"):
        reserve([make(resume="first/checkpoint.pt")])
    assert not Path(".run.lock").exists()


def test_all_directories_are_reserved_or_none(make: Make, hold: Hold) -> None:
    hold("second")
    with pytest.raises(ConfigError, match="out=second"):
        reserve([make(out="new/folder/first"), make(out="second")])
    assert files() == [".second.lock"]


def test_each_is_released_by_itself_and_folders_are_left_that_hold_something(
    make: Make, hold: Hold, made: Callable
) -> None:
    reservation = made([make(out="runs/first"), make(out="runs/second")])
    with pytest.raises(ConfigError, match="another command"):
        reserve([make(out="runs/first")])
    reservation.release(Path("runs/first"))
    hold("runs/first")
    reservation.close()
    assert files() == ["runs", "runs/.first.lock"]


def test_what_is_refused_otherwise_has_no_lock(make: Make) -> None:
    Path("file").touch()
    Path(".blocked.lock").mkdir()
    for out, reason in (
        ("file", "is a file"),
        (".", "stand in"),
        ("/", "stand in"),
        ("blocked", "directory"),
    ):
        with pytest.raises(ConfigError, match=f"out={out}: .*{reason}"):
            reserve([make(out=out)])
    assert files() == [".blocked.lock", "file"]


def test_children_hold_no_lock(make: Make, made: Callable, until: Callable) -> None:
    reservation = made([make()])
    child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        # A fork server's or mpiexec's child inherits what isn't closed when it executes its program.
        opened = lambda: [os.readlink(path) for path in Path(f"/proc/{child.pid}/fd").iterdir()]  # noqa: E731
        until(lambda: Path(f"/proc/{child.pid}/comm").read_text() == "sleep\n", 10, "the child")
        assert not [path for path in opened() if path.endswith(".lock")]
        reservation.close()
        reserve([make()]).close()
    finally:
        child.kill()
        child.wait()


@pytest.mark.slow
def test_a_second_command_is_told_who_writes_there_and_leaves_all_as_it_is(
    mnist: None, commands: Commands, module_commands: Callable[[], Commands], until: Callable
) -> None:
    first = commands.start(*LONG, FREE, "out=run", "seed=0")
    steps = commands.folder / "run/ranks/0/steps.csv"
    until(lambda: steps.exists() and steps.stat().st_size > 200, 120, "training")
    second = module_commands()
    for words in (("seed=0",), ("seed=1", "overwrite=true"), ("seed=2", "-m")):
        begun = time.monotonic()
        refused = second.run(*LONG, FREE, f"out={commands.folder}/run", *words)
        assert time.monotonic() - begun < 10
        assert refused.returncode == 2
        (line,) = refused.stderr.splitlines()
        assert f"is being written by pid {first.pid} (" in line
        assert "src.train" in line
        assert list(second.folder.iterdir()) == []
    assert first.poll() is None
    first.send_signal(signal.SIGINT)
    assert first.wait(60) == 130
    assert yaml.safe_load((commands.folder / "run/config.yaml").read_text())["seed"] == 0
    assert [path.name for path in commands.folder.iterdir()] == ["run"]


@pytest.mark.slow
def test_of_two_commands_at_once_one_trains_and_the_other_is_refused(mnist: None, commands: Commands) -> None:
    other = Commands(commands.folder.with_name("other"))
    out = f"out={commands.folder}/run"
    for seeds in (("0", "0"), ("0", "1")):
        both = [
            each.start(*SHORT, FREE, out, f"seed={seed}", "overwrite=true")
            for each, seed in zip((commands, other), seeds, strict=True)
        ]
        codes = [process.wait(240) for process in both]
        # Now and then the first one has ended before the other one looks.
        assert sorted(codes) in ([0, 2], [0, 0]), (commands.output(), other.output())
        if sorted(codes) == [0, 2]:
            (line,) = (commands, other)[codes.index(2)].output()[1].splitlines()
            assert "is being written by pid" in line
        winner = max(n for n, code in enumerate(codes) if code == 0)
        folder = commands.folder / "run"
        if codes != [0, 0]:
            assert yaml.safe_load((folder / "config.yaml").read_text())["seed"] == int(seeds[winner])
        assert json.loads((folder / "metrics.json").read_text())["status"] == "ok"
        assert (
            json.loads((folder / "metrics.json").read_text())["seed"]
            == (yaml.safe_load((folder / "config.yaml").read_text())["seed"])
        )
        assert [path.name for path in commands.folder.iterdir()] == ["run"]
    # The same command later; and another seed, which needs a word.
    assert commands.run(*SHORT, FREE, out, "seed=5", "overwrite=true").returncode == 0
    assert commands.run(*SHORT, FREE, out, "seed=5").returncode == 0
    refused = commands.run(*SHORT, FREE, out, "seed=6")
    assert refused.returncode == 2 and "overwrite=true" in refused.stderr
    assert [path.name for path in commands.folder.iterdir()] == ["run"]
    other.end()
