"""`python -m src.audit` in a folder of its own, and what it found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from src.audit.__main__ import AUDIT
from tests.support import ROOT

MODELS = "tests.plugin.model.differing"
LIMIT = 400


def audit(folder: Path, *words: str, limit: float = LIMIT) -> subprocess.CompletedProcess[str]:
    """The command, ended, in a folder that holds what it writes."""
    return subprocess.run(
        [sys.executable, "-m", "src.audit", *words, f"out={folder}"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=limit,
        stdin=subprocess.DEVNULL,
    )


def findings(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / AUDIT).read_text())["findings"]


def causes(finding: dict[str, Any]) -> list[str]:
    return [cause["name"] for cause in finding["causes"]]
