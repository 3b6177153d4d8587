"""Read from a file of Python what it executes, and which modules that reaches; nothing is imported."""

from __future__ import annotations

import ast
import hashlib
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path

# A text that is a dotted name, as the module of a command or the path of what is looked up later.
DOTTED = re.compile(r"Constant\(value='([^\W\d]\w*(?:\.[^\W\d]\w*)+)'")


@dataclass(frozen=True)
class Source:
    """The effects of a file of Python.

    Attributes:
        digest: the sha256 of its syntax tree, which has neither comments nor positions, without docstrings
            and without what only type checkers read. It is that of the bytes where the file can't be parsed.
        imports: each imported name in full, with as many dots before it as the import has.
        texts: the dotted names that are texts of the program.
    """

    digest: str
    imports: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()


def read(path: Path) -> Source:
    """Read a file, once for as long as it doesn't change."""
    status = path.stat()
    return _read(path, status.st_mtime_ns, status.st_size)


@cache
def _read(path: Path, changed: int, size: int) -> Source:
    content = path.read_bytes()
    imports: list[str] = []
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(content)
        tree.body = list(_executed(tree.body, imports))
        dumped = ast.dump(tree)
    except (SyntaxError, ValueError, RecursionError):
        return Source(hashlib.sha256(content).hexdigest())
    digest = hashlib.sha256(dumped.encode(errors="surrogatepass")).hexdigest()
    return Source(digest, tuple(dict.fromkeys(imports)), tuple(dict.fromkeys(DOTTED.findall(dumped))))


def _executed(statements: Sequence[ast.stmt], imports: list[str]) -> Iterator[ast.stmt]:
    """Yield the statements that are executed, likewise reduced inside; add what they import to `imports`."""
    for statement in statements:
        match statement:
            case ast.Expr(ast.Constant(str())):
                continue
            case ast.If(ast.Name("TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
                yield from _executed(statement.orelse, imports)
                continue
            case ast.Import():
                imports += [alias.name for alias in statement.names]
            case ast.ImportFrom():
                base = "." * statement.level + (f"{statement.module}." if statement.module else "")
                imports += [base + alias.name for alias in statement.names]
        for block in (statement, *getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
            for name in ("body", "orelse", "finalbody"):
                if inner := getattr(block, name, None):
                    setattr(block, name, list(_executed(inner, imports)))
        yield statement


def reach(
    roots: Iterable[str], folders: Sequence[Path], leave_out: Callable[[str], bool] = lambda module: False
) -> tuple[dict[str, Path], set[str]]:
    """Return the files by module that `roots` lead to, and the top-level names of what is imported besides.

    The first are what lies in one of the `folders`, looked through as Python does; an import within a
    function counts, and so does a text that is the name of a module. The others are of libraries, which are
    not followed, and of the standard library.

    Args:
        roots: modules, or import paths of what they hold.
        folders: where modules are looked for.
        leave_out: says of a module that it isn't followed, and what it holds neither.
    """
    files: dict[str, Path] = {}
    elsewhere: set[str] = set()
    seen: set[tuple[str, bool]] = set()
    waiting = [(root, True) for root in roots]
    while waiting:
        name, imported = waiting.pop()
        if (name, imported) in seen:
            continue
        seen.add((name, imported))
        is_here = False
        for module in accumulate(name.split("."), "{}.{}".format):
            if module not in files:
                if leave_out(module):
                    is_here = True
                    break
                if (path := _find(module, folders)) is None:
                    # A package may have no file.
                    if any(os.path.isdir(f"{folder}/{module.replace('.', '/')}") for folder in folders):
                        continue
                    break
                files[module], source = path, read(path)
                waiting += [(_in_full(each, module, path), True) for each in source.imports]
                waiting += [(each, False) for each in source.texts]
            is_here = True
            if files[module].name != "__init__.py":
                # The rest names what is in the module.
                break
        if imported and not is_here:
            elsewhere.add(name.partition(".")[0])
    return files, elsewhere


def search_path() -> list[Path]:
    """Return the folders in which this project's code and the user's own lie: where Python looks first."""
    root = Path(__file__).resolve().parents[2]
    listed = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    return list(dict.fromkeys(Path(folder).resolve() for folder in (str(root), ".", *listed)))


def _find(module: str, folders: Sequence[Path]) -> Path | None:
    """Return the file of a module in the first of the `folders` that has one."""
    place = module.replace(".", "/")
    for folder in folders:
        for path in (f"{folder}/{place}/__init__.py", f"{folder}/{place}.py"):
            if os.path.isfile(path):
                return Path(path)
    return None


def _in_full(name: str, module: str, path: Path) -> str:
    """Return a name in full that the `module` at `path` imports, by as many dots as it climbs packages."""
    level = len(name) - len(name.lstrip("."))
    if not level:
        return name
    # A package is its own first one.
    climbed = level - (path.name == "__init__.py")
    return ".".join([*module.split(".")[: -climbed or None], name[level:]])
