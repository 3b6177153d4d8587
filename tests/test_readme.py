"""What the documents show is true of the repository.

Commands compose, paths and links lead somewhere, every choice is named, and a mistake is answered as shown.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from functools import cache
from pathlib import Path

import pytest

from src.config import command_line, compose
from src.config.mistakes import ConfigError
from src.launch.launcher import launcher_of
from src.machine import quota
from src.machine.devices import usable_cores
from tests.support import ROOT

README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
DOCUMENTS = [*PAGES, ROOT / "CONTRIBUTING.md"]
# The choices of these commands are made by what stands before them.
MADE = ("--config-dir", "resume=", "data_dir=", "model.path=mine")
COMMANDS = sorted(
    {
        command.strip()
        for page in PAGES
        for command in re.findall(r"^    python -m src\.train\b.*$", page.read_text(), re.MULTILINE)
        if not any(words in command for words in MADE)
    }
)
CHOICES = [
    (group, path.stem)
    for group in ("strategy", "model", "dataset", "study")
    for path in sorted((ROOT / "conf" / group).glob("*.yaml"))
]
# A path, with `*` and `<...>` for what varies.
PATH = re.compile(r"(?<![\w/.-])(?:src|conf|tests|bench|docs)/[\w./*<>-]*")
IMPORT_PATH = re.compile(r"(?<![\w/.-])src(?:\.\w+)+")
# What `make bench` leaves, and git ignores.
LEFT = "bench/out/"


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def cells_of(command: str) -> list[compose.Config]:
    words = shlex.split(command, comments=True)
    return compose.cells(command_line.parse(command_line.flags_first(words[words.index("src.train") + 1 :])))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_composes(command: str) -> None:
    if len(usable_cores()) < 2:
        pytest.skip("two cores are needed")
    if "hardware.speeds" in command:
        try:
            quota.find()
        except quota.NotAllowed as error:
            pytest.skip(str(error))
    assert cells_of(command)


@pytest.mark.parametrize(("group", "name"), CHOICES, ids="-".join)
def test_every_choice_is_named(group: str, name: str) -> None:
    pattern = re.compile(rf"`{name}`|={name}\b")
    assert any(pattern.search(page.read_text()) for page in PAGES), f"conf/{group}/{name}.yaml"


def map_of_the_code() -> list[tuple[str, str]]:
    """Questions and answers of CONTRIBUTING.md's map."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text.partition("## Where is what?")[2].partition("\n## ")[0]
    return re.findall(r"^\| (.+\?) \| (.+) \|$", table, re.MULTILINE)


def test_a_newcomers_questions_are_answered_by_paths_that_lead_to_what_they_name() -> None:
    answers = map_of_the_code()
    assert len(answers) >= 20
    for question, answer in answers:
        words = re.findall(r"`([^`]+)`", answer)
        assert words and "/" in words[0], question
        path = ROOT
        for word in words:
            if "/" in word:
                path = ROOT / word
                assert path.exists(), f"{question} {word}"
                continue
            # It is defined there, and not merely mentioned.
            defined = rf"^ *(?:def |class |async def )?{re.escape(word)}\b *[=:(]"
            assert re.search(defined, path.read_text(), re.MULTILINE), f"{question} {path.name}: {word}"


def test_the_mistake_is_answered_as_shown() -> None:
    shown = re.search(r"\$ python -m src\.train (strategy=dpd)\n    error: ((?:.+\n)+)", README.read_text())
    assert shown is not None
    with pytest.raises(ConfigError) as error:
        cells_of(f"python -m src.train {shown[1]}")
    assert " ".join(shown[2].split()) == str(error.value)


@pytest.mark.parametrize("page", [README, ROOT / "docs" / "extending.md"], ids=named)
def test_the_examples_of_code_from_outside_compose(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if len(usable_cores()) < 2:
        pytest.skip("two cores are needed")
    text = page.read_text()
    for name, code in re.findall(r"^```\w+\n# (mine/\S+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(code)
        if name.endswith(".py"):
            compile(code, name, "exec")
    monkeypatch.syspath_prepend(tmp_path)
    commands = re.findall(r"^    python -m src\.train .*\bmine[/.].*$", text, re.MULTILINE)
    assert commands
    for command in commands:
        for cell in cells_of(command.replace("mine/conf", str(tmp_path / "mine/conf"))):
            launcher_of(cell).check(cell)


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_every_path_that_is_mentioned_exists(document: Path) -> None:
    mentioned = {path.rstrip(".") for path in PATH.findall(document.read_text())}
    patterns = {path: re.sub(r"<[^>]*>", "*", path) for path in mentioned if not path.startswith(LEFT)}
    assert [path for path, pattern in patterns.items() if not any(ROOT.glob(pattern))] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_every_import_path_that_is_mentioned_names_something(document: Path) -> None:
    mentioned = set(IMPORT_PATH.findall(document.read_text()))
    assert [path for path in mentioned if not names_something(path)] == []


def names_something(path: str) -> bool:
    """Whether `path` is a package, a module, or something that a module defines; nothing is imported."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        place = ROOT.joinpath(*parts[:length])
        if place.is_dir():
            return length == len(parts)
        if place.with_suffix(".py").is_file():
            source = place.with_suffix(".py").read_text()
            own = parts[length : length + 1]
            return all(re.search(rf"^(?:def |class ){name}\b|^{name}\b.* =", source, re.M) for name in own)
    return False


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_every_link_leads_somewhere(document: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(document.read_text())):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        place = (document.parent / path).resolve() if path else document
        if not place.exists() or (anchor and anchor not in anchors(place)):
            broken.append(target)
    assert broken == []


@cache
def anchors(document: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    slugs: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", without_code(document.read_text()), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        further = 0
        while (anchor := f"{slug}-{further}" if further else slug) in slugs:
            further += 1
        slugs.add(anchor)
    return slugs


def without_code(text: str) -> str:
    """The text without its blocks of code."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def test_the_layers_are_drawn_as_they_are_held() -> None:
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    drawn = [
        re.findall(r"^(\w+(?: \| \w+)*) {2,}\S", block, re.MULTILINE)
        for block in re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    ]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    assert layers in drawn
