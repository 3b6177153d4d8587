"""A model that torch.compile has compiled computes the same as the one that was written."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from src.config import CannotRunHere
from src.measure.arithmetic import PARITY_STEPS
from tests.support import config, instances

WORDS = ("model=cnn", "batch=32", "microbatches=2", "dataset.limit=512", "dataset.test_limit=250")
SETTINGS = ("hardware.device=cpu", "hardware.share_devices=true", "tracking.backend=none")
# Stages are compiled alone; those that recompute run twice, with buffers that stay.
COMPILED = (
    "single",
    "ddp workers=2",
    "pipeline strategy.schedule=1f1b strategy.recompute=full",
    "parameter_server workers=2",
)


def losses(out: Path) -> list[float]:
    with (out / "steps.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["rank"] == "0"]
    return [float(row["loss"]) for row in rows[:PARITY_STEPS]]


@pytest.fixture(scope="module")
def plain(module_commands: Callable[[], Any], mnist: None) -> list[float]:
    """The losses of `single` as it is written."""
    commands = module_commands()
    completed = commands.run("strategy=single", "out=run", *WORDS, *SETTINGS)
    assert completed.returncode == 0, completed.stderr
    return losses(commands.folder / "run")


@pytest.mark.slow
@pytest.mark.parametrize("strategy", instances(COMPILED, COMPILED[2]))
def test_losses_are_those_of_the_written_model(
    strategy: str, plain: list[float], module_commands: Callable[[], Any], tmp_path: Path
) -> None:
    if shutil.which("g++") is None:
        pytest.skip("there is no C++ compiler, g++")
    commands = module_commands()
    words = f"strategy={strategy} strategy.compile=true out=run".split()
    # A rank that is forked has read torch's variables before.
    words.append("hardware.start_method=spawn")
    variables = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "TORCH_LOGS": "recompiles"}
    completed = commands.run(*words, *WORDS, *SETTINGS, **variables)
    assert completed.returncode == 0, completed.stderr
    compiled = losses(commands.folder / "run")
    assert len(compiled) == PARITY_STEPS
    assert compiled == pytest.approx(plain, abs=1e-4)
    assert list(tmp_path.rglob("*.so")), "nothing was compiled"
    # What was compiled in the start-up serves the steps.
    logs = [path.read_text() for path in (commands.folder / "run" / "logs").iterdir()]
    assert logs and not any("Recompiling" in log for log in logs)
    # A coordinator's first step includes its wait for the workers, which compile meanwhile.
    if not strategy.startswith("parameter_server"):
        with (commands.folder / "run" / "steps.csv").open(newline="") as file:
            assert float(next(csv.DictReader(file))["seconds"]) < 5


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    config("strategy=single", "strategy.compile=false")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(CannotRunHere, match="there is no no-such-compiler here"):
        config("strategy=single", "strategy.compile=true")
