"""What a user may type or bring wrongly ends with a sentence and a status, and leaves nothing behind."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.config import bad_files
from tests.config.bad_inputs import CASES, SHORT, Case
from tests.support import ROOT

pytestmark = pytest.mark.slow

SECONDS = 120
# How the lines of Python's tracebacks begin, and Hydra's hint at one.
TRACEBACK = ("Traceback", "HYDRA_FULL_ERROR")

LATER = {
    "d_outlinkempty": pytest.mark.xfail(
        strict=False, reason="a directory that is a link is claimed elsewhere"
    ),
}


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

    def run(self, case: Case) -> subprocess.CompletedProcess[str]:
        words = f"{SHORT} {case.words}" + (f" out={self.paths['out']}" if case.out else "")
        inherited = {key: value for key, value in os.environ.items() if key != "SCALEGUIDE_MAX_MINUTES"}
        return subprocess.run(
            [sys.executable, "-m", "src.train", *shlex.split(self.filled(words))],
            cwd=self.here,
            env={
                **inherited,
                "PYTHONPATH": f"{ROOT}:{self.paths['fix']}",
                "PYTHONDONTWRITEBYTECODE": "1",
                "TMPDIR": self.paths["temporary"],
                **{key: self.filled(value) for key, value in case.environment.items()},
            },
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


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=LATER[name]) if name in LATER else name for name in CASES]
)
def test_it_ends_with_a_sentence_and_leaves_nothing(
    name: str, place: Place, request: pytest.FixtureRequest
) -> None:
    case = CASES[name]
    for word, fixture in (("{ro}", "read_only"), ("{ck}", "checkpoint")):
        if word in case.words:
            request.getfixturevalue(fixture)
    before = place.contents()
    completed = place.run(case)
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
