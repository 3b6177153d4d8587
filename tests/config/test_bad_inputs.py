"""What a user may type or bring wrongly ends with a sentence and a status, and leaves nothing behind."""

from __future__ import annotations

import dataclasses
import os
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from src.run.variables import FORK_SERVERS
from tests.config import bad_files
from tests.config.bad_inputs import CASES, SHORT, Case
from tests.forking import ForkedCommand, start_fork_server
from tests.support import ROOT

pytestmark = pytest.mark.slow

SECONDS = 120
QUICK_SECONDS = 2.0
# To look into a model or a checkpoint, beside the import of the framework: ten seconds where that takes six.
LOOK_RATIO = 1.6
# How the lines of Python's tracebacks begin, and Hydra's hint at one.
TRACEBACK = ("Traceback", "HYDRA_FULL_ERROR")

# With these words a process imports a framework; the tests' own server has done so already.
LOOKED_INTO = ("model.path", "resume=", "model=mlp", "model.pretrained", "partition", "checkpoint_every")

# Cases that are typed for real.
TYPED = {*list(CASES)[::7], "a21_outnewline", "a24_env"}


@dataclass(frozen=True)
class Place:
    """Where the commands run.

    Attributes:
        here: their working directory, which holds a README.md alone.
        paths: what the names in braces in a case's words stand for.
    """

    here: Path
    paths: dict[str, str]

    def filled(self, text: str) -> str:
        """`text` with paths in the place of their names in braces."""
        for name, path in self.paths.items():
            text = text.replace(f"{{{name}}}", path)
        return text

    def run(self, case: Case, *, typed: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs the command to its end: as it is typed, or forked from a process that all tests share."""
        words = f"{SHORT} {case.words}" + (f" out={self.paths['out']}" if case.out else "")
        if any(word in words for word in LOOKED_INTO):
            start_fork_server("tensorflow" if "strategy=tf_" in words else "torch")
        environment = {
            **{key: value for key, value in os.environ.items() if key != "SCALEGUIDE_MAX_MINUTES"},
            "PYTHONPATH": f"{ROOT}:{self.paths['fix']}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": self.paths["temporary"],
            **{key: self.filled(value) for key, value in case.environment.items()},
        }
        split = shlex.split(self.filled(words))
        if not typed:
            with tempfile.TemporaryDirectory() as folder:
                out, err = Path(folder, "out"), Path(folder, "err")
                process = ForkedCommand(split, self.here, environment, out, err)
                code = process.wait(SECONDS)
                return subprocess.CompletedProcess(process.args, code, out.read_text(), err.read_text())
        return subprocess.run(
            [sys.executable, "-m", "src.train", *split],
            cwd=self.here,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def contents(self) -> set[str]:
        """What is in all folders that a command could write to."""
        every = {str(path) for path in Path(self.paths["tmp"]).rglob("*")}
        # torch's own cache is one for all its programs.
        return {path for path in every if "/temporary/torchinductor" not in path}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, mnist: None) -> Place:
    tmp = tmp_path_factory.mktemp("bad").resolve()
    names = ("here", "fix", "ro", "temporary")
    for name in names:
        (tmp / name).mkdir()
    (tmp / "here/README.md").write_text("a file\n")
    bad_files.make(tmp / "fix")
    (tmp / "fix/dangling").symlink_to("/nonexist/dir")
    (tmp / "target").mkdir()
    (tmp / "fix/link").symlink_to(tmp / "target")
    paths = {name: str(tmp / name) for name in names}
    return Place(tmp / "here", {**paths, "tmp": str(tmp), "out": str(tmp / "out"), "ck": str(tmp / "ck")})


@pytest.fixture
def read_only(place: Place) -> Iterator[None]:
    """A file system that can't be written, even by root."""
    folder = place.paths["ro"]
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", folder], capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"no file system can be mounted here: {made.stderr.strip()}")
    yield
    subprocess.run(["umount", folder], check=True)


@pytest.fixture(scope="module")
def checkpoint(place: Place) -> None:
    """The checkpoint of a cnn after an epoch of 1280 samples."""
    written = place.run(Case("dataset.limit=1280 max_minutes=5 checkpoint_every=5 out={tmp}/run", out=False))
    assert written.returncode == 0, written.stderr
    os.replace(f"{place.paths['tmp']}/run/checkpoint.pt", place.paths["ck"])


@pytest.mark.parametrize("name", list(CASES))
def test_it_ends_with_a_sentence_and_leaves_nothing(
    name: str, place: Place, request: pytest.FixtureRequest
) -> None:
    case = CASES[name]
    for word, fixture in (("{ro}", "read_only"), ("{ck}", "checkpoint")):
        if word in case.words:
            request.getfixturevalue(fixture)
    before = place.contents()
    completed = place.run(case, typed=name in TYPED)
    lines = completed.stderr.splitlines()
    assert completed.returncode == case.code, completed.stderr
    assert not any(mark in line for line in lines for mark in TRACEBACK), completed.stderr
    if case.keeps:
        shutil.rmtree(place.paths["out"])
    assert place.contents() == before
    if not case.code:
        return
    # What has begun may have said so: a fetch, a rank.
    errors = [line for line in lines if line.startswith("error: ")]
    assert len(errors) == 1 and (len(lines) == 1 or case.code == 1), completed.stderr
    position = 0
    for fragment in map(place.filled, case.says):
        assert fragment in errors[0][position:], errors[0]
        position = errors[0].index(fragment, position)


@pytest.mark.parametrize(
    ("gone", "says"),
    [
        ("conf/hardware/local.yaml", "hardware=local: no such hardware"),
        ("conf/config.yaml", "Cannot find primary config 'config'"),
        ("conf", "Primary config directory not found"),
    ],
)
def test_a_program_without_its_configuration_says_so(gone: str, says: str, tmp_path: Path) -> None:
    for folder in ("src", "conf"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    path = tmp_path / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    completed = subprocess.run(
        [sys.executable, "-m", "src.train", "model=mlp"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    (line,) = completed.stderr.splitlines()
    assert completed.returncode == 2 and says in line
    assert {path.name for path in tmp_path.iterdir()} <= {"src", "conf"}


def test_a_link_to_an_empty_directory_leads_there(place: Place) -> None:
    """The list's `d_outlinkempty`."""
    target = Path(place.filled("{tmp}/target"))
    try:
        completed = place.run(Case("model=mlp out={fix}/link", out=False))
        assert (completed.returncode, completed.stderr) == (0, "")
        assert (target / "metrics.json").exists()
    finally:
        shutil.rmtree(target)
        target.mkdir()


def test_a_file_in_the_place_of_an_unfinished_run_is_no_traceback(place: Place) -> None:
    case = Case("model=mlp out={tmp}/taken", out=False)
    beside = Path(place.filled("{tmp}/taken.partial"))
    try:
        assert place.run(case).returncode == 0
        beside.touch()
        completed = place.run(case)
        assert completed.returncode in (0, 2)
        assert not any(mark in completed.stderr for mark in TRACEBACK)
    finally:
        beside.unlink(missing_ok=True)
        shutil.rmtree(place.filled("{tmp}/taken"), ignore_errors=True)


def cpu_seconds(run: Callable[[], object]) -> float:
    """Time that commands and their processes compute: on a quiet machine, about what the user waits."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def answer(place: Place, case: Case) -> None:
    assert place.run(case).returncode == case.code


@pytest.mark.parametrize("name", ["a01_model", "a18_outlink", "a44_nolaunch", "a49_nofile"])
def test_a_mistake_that_needs_no_rank_is_answered_within_two_seconds(name: str, place: Place) -> None:
    assert min(cpu_seconds(lambda: answer(place, CASES[name])) for _ in range(2)) < QUICK_SECONDS


@pytest.mark.parametrize("name", ["b_m_notcallable", "b_res_garbage"])
def test_looking_into_a_model_or_a_checkpoint_takes_little_more_than_the_framework(
    name: str, place: Place
) -> None:
    # Not by the server of the tests, which has imported the framework already.
    alone = dataclasses.replace(CASES[name], environment={FORK_SERVERS: ""})
    framework = [sys.executable, "-c", "import torch, pytorch_lightning"]
    # A busy core takes up to twice the seconds for the same work; beside each other, both do.
    assert any(
        cpu_seconds(lambda: answer(place, alone))
        < LOOK_RATIO * cpu_seconds(lambda: subprocess.run(framework, check=True))
        for _ in range(2)
    )
