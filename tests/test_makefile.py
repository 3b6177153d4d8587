"""The Makefile says what is missing before it installs anything."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import ROOT


@pytest.mark.parametrize("target", ["run", "study"])
def test_without_a_repository_a_study_says_so_at_once(tmp_path: Path, target: str) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    done = subprocess.run(
        ["make", "--no-print-directory", target], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stdout.startswith(
        "no git repository, which DVC needs: clone it with git, or make one here: git init"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["Makefile"]
