"""Predictions held against a GPU: what docs say of an H200 is what is predicted today; cells are trained."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import gpu_steps
from tests.support import ROOT

pytestmark = pytest.mark.slow

# Their steps are looked at in a few seconds.
SMALL = ("cnn", "resnet18")


def documented() -> list[list[str]]:
    """Return the rows of the table in docs/predict.md."""
    table = (ROOT / "docs/predict.md").read_text().split("<!-- h200 table -->")[1].split("<!--")[0]
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return [row for row in rows if len(row) == 8][2:]


def words_of(name: str, batch: str, precision: str) -> str:
    """Return the words of a cell that is called so."""
    wanted = name, batch, precision
    (words,) = [words for words in gpu_steps.CELLS if gpu_steps.called(words) == wanted]
    return words


def test_what_is_predicted_of_an_h200_stands_in_the_docs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row for row in documented() if row[0] in SMALL]
    measured = [
        {
            "words": words_of(*row[:3]),
            "status": "ok",
            "device": "NVIDIA H200",
            "seconds": float(row[3].removesuffix(" ms")) / 1000,
            "peak_bytes": float(row[6].removesuffix(" GiB")) * 2**30,
        }
        for row in rows
    ]
    (tmp_path / "steps.json").write_text(json.dumps(measured))
    assert gpu_steps.table(tmp_path / "steps.json") == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][2:]
    assert len(lines) == len(rows) == 4
    for line, row in zip(lines, rows, strict=True):
        _, _, _, _, ratio, _, of_held = (cell.strip() for cell in line.strip("|").split("|"))
        # Both are of figures that the docs round.
        assert (float(ratio), float(of_held)) == pytest.approx((float(row[5]), float(row[7])), rel=0.03)


def test_cells_are_trained_one_after_the_other_and_those_that_fail_are_told(tmp_path: Path) -> None:
    cell = "model=mlp dataset=synthetic dataset.shape=[4,4,1] dataset.classes=2 batch=8 precision=fp32"
    cells = [cell, cell.replace("model=mlp", "model=none"), cell.replace("batch=8", "batch=16")]
    code = f"from bench import gpu_steps as g; g.CELLS = {cells!r}; g.main()"
    path = tmp_path / "steps.json"
    for _ in range(2):
        # What a file has isn't trained again.
        words = [sys.executable, "-c", code, "measure", str(path)]
        ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
        assert ended.returncode == 0, ended.stderr
        rows = json.loads(path.read_text())
        assert [row["words"] for row in rows] == cells
    assert [row["status"] for row in rows] == ["ok", "failed", "ok"]
    assert "model=none: no such model" in rows[1]["error"]
    assert all(0 < row["low"] <= row["seconds"] <= row["high"] for row in (rows[0], rows[2]))
