"""What an import path names is found without importing anything, and errors of own code keep their line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from src.config import ConfigError, OwnCodeError, import_paths

MODULE = """
import os.path as paths
from json import dumps
if True:
    try:
        found = 1
    except ValueError:
        rescued = 2
a, (b, *c) = 1, (2, 3)
def function(): inner = 1
class Kind: member = 1
print("imported")
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "ownpackage"
    (folder / "deep").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('imported')")
    (folder / "names.py").write_text(MODULE)
    (folder / "star.py").write_text("from json import *\n")
    (folder / "late.py").write_text("def __getattr__(name): return name\n")
    (folder / "made.py").write_text("globals()['x'] = 1\n")
    (folder / "wrong.py").write_text("x = 1\ndef (:\n")
    (folder / "deep" / "inner.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder


@pytest.mark.parametrize(
    "path",
    [
        *(
            f"names.{name}"
            for name in ("paths", "dumps", "found", "rescued", "a", "b", "c", "function", "Kind")
        ),
        "names.Kind.member",
        "star.anything",
        "late.anything",
        "made.x",
        "deep.inner.x",
    ],
)
def test_what_a_module_may_define_is_accepted_without_importing_it(package: Path, path: str) -> None:
    import_paths.check("key", f"ownpackage.{path}")
    assert "ownpackage" not in sys.modules


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("ownpackage.names.funktion", "ownpackage.names has no 'funktion'; did you mean function?"),
        ("ownpackage.names.inner", "ownpackage.names has no 'inner'"),
        ("ownpackage.nmes.x", "ownpackage has no 'nmes'; did you mean names?"),
        ("ownpackage.deep.iner", "did you mean inner?"),
        ("ownpackage.names", "is a module"),
        ("ownpackage", "is no import path"),
        ("nothing_of_this_name.x", "no package 'nothing_of_this_name'"),
        ("a b.c", "is no import path"),
    ],
)
def test_what_it_cannot_define_is_refused(package: Path, path: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        import_paths.check("key", path)
    assert f"key={path}: " in str(refused.value) and says in str(refused.value)


def test_a_module_that_is_no_python_is_named_with_its_line(package: Path) -> None:
    with pytest.raises(OwnCodeError, match=rf"SyntaxError: .*, at {package}/wrong.py:2"):
        import_paths.check("key", "ownpackage.wrong.x")


def test_an_error_of_an_own_module_keeps_its_type_and_line(package: Path) -> None:
    with pytest.raises(RuntimeError) as raised:
        import_paths.resolve("key", "ownpackage.names.a")
    described = import_paths.describe_error(raised.value)
    assert described == f"RuntimeError: imported, at {package}/__init__.py:1"


def test_a_path_through_classes_is_resolved() -> None:
    assert import_paths.resolve("key", "pathlib.Path.cwd")() == Path.cwd()
    with pytest.raises(ConfigError, match="Path has no 'cwdd'"):
        import_paths.resolve("key", "pathlib.Path.cwdd")
