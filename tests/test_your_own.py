"""docs/your-own.md is true as it is typed: its files, its folder of images, its commands."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from src.machine.devices import usable_cores
from src.run.variables import FORK_SERVERS
from tests.conftest import Commands
from tests.support import ROOT
from tests.test_pipeline import CAPS, Tree

PAGE = (ROOT / "docs" / "your-own.md").read_text()
FILES = re.findall(r"^```python\n# (mine/\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
SETUP = re.findall(r"^    ((?:git clone|make install|\.) ?.*)$", PAGE, re.MULTILINE)
TORCH, KERAS = re.findall(r"^    python -m src\.train (.+)$", PAGE, re.MULTILINE)
MORE = ("hardware.device=cpu", "hardware.share_devices=true", "tracking.backend=none", "epochs=1", "batch=16")


def write(folder: Path, train: int, val: int) -> None:
    """Write the page's files, and a folder of so many images of each class, which a colour tells."""
    for name, code in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(code)
    random = np.random.default_rng(0)
    for split, count in (("train", train), ("val", val)):
        for label, name in enumerate(("cat", "dog")):
            images = folder / "images" / split / name
            images.mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 100, (40, 60, 3), np.uint8)
                pixels[..., label] += 100
                Image.fromarray(pixels).save(images / f"{number}.png")


def test_a_model_takes_ten_lines_and_a_table_four_commands() -> None:
    assert len(FILES) == 2 and len(SETUP) == 3
    assert all(len([line for line in code.splitlines() if line.strip()]) <= 10 for _, code in FILES)


@pytest.mark.slow
def test_from_a_fresh_clone_to_a_table(tmp_path: Path) -> None:
    """The commands are the page's, but for where to clone from; the environment is this one."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    if len(usable_cores()) < 2:
        pytest.skip("two devices are two cores")
    origin = Tree(tmp_path)
    clone, *further = SETUP
    script = [
        clone.replace("ADDRESS", str(origin.folder)),
        # What `make install` would make, and what it goes by.
        f"ln -s {sys.prefix} .venv && touch -d 2000-01-01 pyproject.toml constraints.txt",
    ]
    subprocess.run(["bash", "-ec", "\n".join(script)], cwd=tmp_path, check=True)
    write(tmp_path / "scaleguide", 160, 20)
    left_out = ("PYTHONPATH", "MLFLOW_TRACKING_URI", "VIRTUAL_ENV", *CAPS, FORK_SERVERS)
    shell = {key: value for key, value in os.environ.items() if key not in left_out}
    completed = subprocess.run(
        ["bash", "-ec", "\n".join([*further, f"python -m src.train {TORCH}"])],
        cwd=tmp_path / "scaleguide",
        env={**shell, "SCALEGUIDE_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert "3 runs: at most 1 h on their devices (" in completed.stdout
    table = completed.stdout.partition("\nsweep, ")[2].splitlines()
    words = [line.split() for line in table if line.startswith(("single ", "ddp ", "pipeline "))]
    assert [row[0] for row in words] == ["single", "ddp", "pipeline"] and all(
        row[-1] == "ok" for row in words
    )
    # BatchNorm's statistics are a rank's or a micro-batch's own.
    assert any("parity" in line for line in table)
    assert "reference" in words[0] and {"local", "statistics"} <= {*words[1]}
    assert all("100.00%" in row for row in words)


@pytest.mark.slow
def test_the_keras_model_trains_as_the_page_has_it(
    module_commands: Callable[[], Commands], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCALEGUIDE_CACHE", str(tmp_path / "cache"))
    commands = module_commands()
    write(commands.folder, 24, 8)
    completed = commands.run(*shlex.split(KERAS), *MORE, PYTHONPATH=f"{ROOT}:{commands.folder}")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert completed.stdout.count("  ok: accuracy ") == 2
    assert commands.left() == []
