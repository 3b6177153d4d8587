"""What `make lint` asks holds for the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from tests.support import ROOT


@pytest.mark.parametrize("words", [["format", "--check", "--quiet", "."], ["check", "."]], ids=lambda w: w[0])
def test_ruff_is_content(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_lint_runs_both() -> None:
    # -n: a fresh machine's `make lint` would first install what this test runs in.
    # Inside `make test` a second make would speak of the folders that it enters.
    outside = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    said = subprocess.run(
        ["make", "-n", "lint"], cwd=ROOT, capture_output=True, text=True, check=True, env=outside
    ).stdout
    assert said.splitlines()[-2:] == ["ruff format --check .", "ruff check ."]
