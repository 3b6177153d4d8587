"""The commands that the README shows compose, every choice is named, and its mistake is answered as shown."""

from __future__ import annotations

import re
import shlex

import pytest

from src import command_line, compose
from src.launch import quota
from src.launch.devices import usable_cores
from src.rules import ConfigError
from tests.support import ROOT

TEXT = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"^    python -m src\.train\b.*$", TEXT, re.MULTILINE)
# What these name is made by what stands before them.
MADE = ("--config-dir mine/conf", "resume=")
CHOICES = [
    (group, path.stem)
    for group in ("strategy", "model", "dataset", "study")
    for path in sorted((ROOT / "conf" / group).glob("*.yaml"))
]


@pytest.mark.parametrize(
    "command", [command.strip() for command in COMMANDS if not any(words in command for words in MADE)]
)
def test_a_command_composes(command: str) -> None:
    if len(usable_cores()) < 2:
        pytest.skip("two cores are needed")
    if "hardware.speeds" in command:
        try:
            quota.find()
        except quota.NotAllowed as error:
            pytest.skip(str(error))
    words = shlex.split(command, comments=True)[3:]
    assert compose.cells(command_line.parse(command_line.flags_first(words)))


@pytest.mark.parametrize(("group", "name"), CHOICES, ids="-".join)
def test_every_choice_is_named(group: str, name: str) -> None:
    assert re.search(rf"`{name}`|={name}\b", TEXT), f"conf/{group}/{name}.yaml"


def test_the_mistake_is_answered_as_shown() -> None:
    shown = re.search(r"\$ python -m src\.train (strategy=dpd)\n    error: ((?:.+\n)+)", TEXT)
    assert shown is not None
    with pytest.raises(ConfigError) as error:
        compose.cells(command_line.parse(command_line.flags_first([shown[1]])))
    assert " ".join(shown[2].split()) == str(error.value)
