"""Check that docstrings name their objects, and that files stay short."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import ROOT

# Beginnings of fragments, which answer a question that the reader doesn't see.
FRAGMENTS = ("What", "Of", "The same", "Its", "Rank 0's")
# 300 lines are a hint to look for a second idea.
MOST_LINES = 400
# How comments begin that say what there is without a verb.
COMMENT = re.compile(r"#\s(?:Of|Those|Whose)\b")


def _sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def _fragments(path: Path, source: str) -> Iterator[str]:
    """Yield file:line and first line of each docstring in `source` that begins as a fragment."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        text = ast.get_docstring(node)
        if text is None:
            continue
        whole = isinstance(node, ast.Module | ast.ClassDef)
        beginnings = "|".join(FRAGMENTS if whole else (*FRAGMENTS, "Whether"))
        # Ruff's D401 leaves properties out.
        noun = _is_property(node) and not text.startswith("Return ")
        if noun or re.match(rf"({beginnings})\b", text):
            yield f"{path}:{node.body[0].lineno}: {text.splitlines()[0]}"


def _is_property(node: ast.AST) -> bool:
    decorators = {ast.unparse(each) for each in getattr(node, "decorator_list", [])}
    return bool(decorators & {"property", "cached_property"})


def test_no_docstring_begins_as_a_fragment() -> None:
    paths = _sources("src", "bench", "conf/hydra_plugins")
    fragments = [
        line for p in paths for line in _fragments(p.relative_to(ROOT), p.read_text(encoding="utf-8"))
    ]
    assert not fragments, "begin with a verb (a class: a noun) that says what it is:\n" + "\n".join(fragments)


@pytest.mark.parametrize("text", ["What it is.", "Its rank.", "Whether it is\n    done.", "Rank 0's."])
def test_a_fragment_is_named_by_file_and_line(text: str) -> None:
    source = f'"""Do nothing."""\n\n\ndef _private():\n    """{text}"""\n'
    assert [line.partition(": ")[0] for line in _fragments(Path("a.py"), source)] == ["a.py:5"]
    assert not list(_fragments(Path("a.py"), source.replace(text, "Return it.")))


def test_a_property_that_names_a_noun_is_a_fragment() -> None:
    source = (
        '"""Do nothing."""\n\n\nclass A:\n    @property\n    def size(self):\n        """Size of it."""\n'
    )
    assert len(list(_fragments(Path("a.py"), source))) == 1
    assert not list(_fragments(Path("a.py"), source.replace("Size of", "Return the size of")))


def _comment_fragments(path: Path, source: str) -> Iterator[str]:
    """Yield file:line and text of each comment that begins as a fragment."""
    before = ""
    for number, line in enumerate(map(str.strip, source.splitlines()), 1):
        if COMMENT.match(line) and not before.startswith("#"):
            yield f"{path}:{number}: {line}"
        before = line


def test_no_comment_begins_as_a_fragment() -> None:
    paths = _sources("src", "bench", "conf/hydra_plugins")
    fragments = [
        line for p in paths for line in _comment_fragments(p.relative_to(ROOT), p.read_text(encoding="utf-8"))
    ]
    assert not fragments, "say what is so, with a verb:\n" + "\n".join(fragments)


def test_a_fragment_of_a_comment_is_named_by_file_and_line() -> None:
    source = "x = 1\n# Of the host.\ny = 2\n# It is that\n# Of the host.\n"
    assert list(_comment_fragments(Path("a.py"), source)) == ["a.py:2: # Of the host."]


def test_no_source_file_is_too_long() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in _sources("src")}
    long = [f"{path.relative_to(ROOT)}:{count}" for path, count in lengths.items() if count > MOST_LINES]
    assert not long, f"more than {MOST_LINES} lines:\n" + "\n".join(long)
