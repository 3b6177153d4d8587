"""What `make lint` asks holds for the repository."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests.support import ROOT

COMMANDS = ["ruff format --check .", "ruff check .", "lint-imports", "mypy"]
# Types take half a minute where mypy has no cache yet.
SLOW = {"mypy"}


@pytest.mark.parametrize(
    "command", [pytest.param(each, marks=[pytest.mark.slow] * (each in SLOW)) for each in COMMANDS]
)
def test_the_repository_is_clean(command: str) -> None:
    completed = subprocess.run(command.split(), cwd=ROOT, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_lint_runs_them() -> None:
    # -n: a fresh machine's `make lint` would first install what this test runs in.
    # Inside `make test` a second make would speak of the folders that it enters.
    outside = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    output = subprocess.run(
        ["make", "-n", "lint"], cwd=ROOT, capture_output=True, text=True, check=True, env=outside
    ).stdout
    assert output.splitlines()[-len(COMMANDS) :] == COMMANDS


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("from importlib import import_module\n\nimport_module('src.train')\n", "banned-api"),
        ("import torch\n\ntorch.zeros(1)._cdata\n", "private-member-access"),
        ("from torch._C import Node\n\nNode()\n", "import-private-name"),
        ('def size() -> int:\n    """Returns the size."""\n    return 1\n', "non-imperative-mood"),
    ],
)
def test_ruff_names_what_the_project_forbids(line: str, rule: str) -> None:
    completed = subprocess.run(
        ["ruff", "check", "--output-format=concise", "--stdin-filename=src/run/new.py", "-"],
        cwd=ROOT,
        input=line,
        capture_output=True,
        text=True,
        check=False,
    )
    assert rule in completed.stdout
