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
COMMANDS = re.findall(r"^    python -m src\.train (.+)$", PAGE, re.MULTILINE)
TORCH, KERAS, HUGGINGFACE, LIGHTNING = (
    next(command for command in COMMANDS if word in command)
    for word in ("mine.net.build", "mine.keras_net.build", "model=huggingface", "model=lightning")
)
# The README's own way to a verdict: its file, and its commands but for where to clone from.
README = (ROOT / "README.md").read_text()
(README_FILE,) = re.findall(r"^```python\n# (mine/\S+)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
README_COMMANDS = re.findall(r"^    ((?:git clone|make install|\. |.*\bseed=).*)$", README, re.MULTILINE)
# It is cut short: two of its three seeds, and of the samples so many that there are 64 steps.
SHORT = {"seed=0,1,2": "seed=0,1", "strategy=single,ddp,pipeline": "strategy=single,ddp"}
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


def test_a_model_takes_ten_lines_and_a_verdict_four_commands() -> None:
    assert len(FILES) == 3 and len(SETUP) == 3
    assert README_COMMANDS[:3] == SETUP and len(README_COMMANDS) == 4
    files = [*FILES, README_FILE]
    assert all(len([line for line in code.splitlines() if line.strip()]) <= 10 for _, code in files)


@pytest.mark.slow
def test_from_a_fresh_clone_to_a_table_and_a_verdict(tmp_path: Path) -> None:
    """The commands are the pages', but for where to clone from; the environment is this one."""
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
    name, code = README_FILE
    (tmp_path / "scaleguide" / name).write_text(code)
    train = README_COMMANDS[3] + " dataset.limit=8192 dataset.test_limit=1000 hardware.device=cpu"
    for whole, part in SHORT.items():
        assert whole in train
        train = train.replace(whole, part)
    completed = subprocess.run(
        ["bash", "-ec", "\n".join([*further, train])],
        cwd=tmp_path / "scaleguide",
        env=shell,
        capture_output=True,
        text=True,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    verdict = completed.stdout.partition("\nverdict by throughput: mine.net.build on mnist: ")[2]
    assert "4 runs, 2 of each configuration" in verdict.replace("\n ", "") and "samples/s" in verdict


@pytest.mark.slow
@pytest.mark.parametrize("typed", [KERAS, LIGHTNING], ids=["keras", "lightning"])
def test_further_models_train_as_the_page_has_them(
    module_commands: Callable[[], Commands], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    monkeypatch.setenv("SCALEGUIDE_CACHE", str(tmp_path / "cache"))
    commands = module_commands()
    write(commands.folder, 24, 8)
    completed = commands.run(*shlex.split(typed), *MORE, PYTHONPATH=f"{ROOT}:{commands.folder}")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert completed.stdout.count("  ok: accuracy ") == 2
    assert commands.left() == []


@pytest.mark.slow
def test_the_hugging_face_model_trains_as_the_page_has_it_and_equals_one_device(
    module_commands: Callable[[], Commands], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCALEGUIDE_CACHE", str(tmp_path / "cache"))
    commands = module_commands()
    # The dictionary's stand-in, and a few of its sequences.
    short = (
        "dataset.source=generated",
        "dataset.options.length=32",
        "dataset.limit=320",
        "dataset.test_limit=32",
    )
    completed = commands.run(*shlex.split(HUGGINGFACE), *MORE, *short)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert completed.stdout.count("  ok: perplexity ") == 3
    table = completed.stdout.partition("\nsweep, ")[2]
    parity = {line.split()[0]: line for line in table.splitlines() if line.startswith(("ddp ", "pipeline "))}
    assert len(parity) == 2 and all(" holds " in line for line in parity.values())
    assert commands.left() == []
