"""docs/your-own.md is true as it is typed: its files, its folder of images, its commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import Commands
from tests.support import ROOT

PAGE = (ROOT / "docs" / "your-own.md").read_text()
FILES = re.findall(r"^```python\n# (mine/\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"^    python -m src\.train (.+)$", PAGE, re.MULTILINE)
MORE = ("hardware.device=cpu", "hardware.share_devices=true", "tracking.backend=none", "epochs=1", "batch=16")


def test_a_model_takes_ten_lines() -> None:
    assert len(FILES) == len(COMMANDS) == 2
    assert all(len([line for line in code.splitlines() if line.strip()]) <= 10 for _, code in FILES)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=["torch", "keras"])
def test_the_command_trains_what_the_page_shows(
    module_commands: Callable[[], Commands], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.setenv("SCALEGUIDE_CACHE", str(tmp_path / "cache"))
    commands = module_commands()
    for name, code in FILES:
        (commands.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (commands.folder / name).write_text(code)
    random = np.random.default_rng(0)
    for split, count in (("train", 24), ("val", 8)):
        for label, name in enumerate(("cat", "dog")):
            folder = commands.folder / "images" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 100, (40, 60, 3), np.uint8)
                pixels[..., label] += 100
                Image.fromarray(pixels).save(folder / f"{number}.png")
    completed = commands.run(*shlex.split(command), *MORE, PYTHONPATH=f"{ROOT}:{commands.folder}")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert completed.stdout.count("  ok: accuracy ") == len(shlex.split(command)[0].split(","))
    assert commands.left() == []
