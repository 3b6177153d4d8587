"""A table of models over strategies says what came of each run, and its exit status whether all is well."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import own_models
from bench.own_models import MODELS, Trained, kinds, verdict
from src.report.runs import load_run


def test_every_kind_has_a_sentence() -> None:
    found = kinds(MODELS)
    assert len(found) == len(list(MODELS.glob("*.py")))
    assert found["tied"] == "One weight in two layers, of which the first that is registered is used last"


def test_refusals_are_numbered_once_and_failures_stand_out(tmp_path: Path) -> None:
    run, notes = load_run("gone", {}, tmp_path / "gone"), list[str]()
    said = [f"strategy={name}: its gradient is sparse" for name in ("ddp", "mpi")]
    assert [verdict(Trained(run, each), [], notes) for each in said] == ["refused [1]"] * 2
    assert notes == ["its gradient is sparse"]
    assert verdict(Trained(run, None, hangs=True), [], notes) == "**hangs**"
    assert verdict(Trained(run, None), [], notes).startswith("**missing**")


@pytest.mark.slow
def test_a_folder_of_the_users_is_trained_under_each_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], mnist: None
) -> None:
    for name in ("tied", "sparse"):
        (tmp_path / f"{name}.py").write_text((MODELS / f"{name}.py").read_text())
    (tmp_path / "broken.py").write_text("def build(classes, shape):\n    return 1 / 0\n")
    monkeypatch.setattr(own_models, "OUT", tmp_path / "out")
    (tmp_path / "out").mkdir()
    chosen = {name: own_models.STRATEGIES[name] for name in ("single", "ddp", "model_split")}
    monkeypatch.setattr(own_models, "STRATEGIES", chosen)
    monkeypatch.setattr(own_models, "REFERENCES", 1)
    monkeypatch.setattr("sys.argv", ["own_models", "--folder", str(tmp_path)])
    assert own_models.main() == 0
    _, _, broken, sparse, tied, *notes = capsys.readouterr().out.splitlines()
    assert broken.endswith("| refused [1] | refused [1] | refused [1] |")
    assert "ZeroDivisionError" in notes[1]
    assert sparse.endswith("| trained | refused [2] | holds, 0e+00 |")
    assert tied.startswith("| One weight in two layers") and tied.endswith("| holds, 0e+00 |")
    assert "| trained | holds, " in tied
