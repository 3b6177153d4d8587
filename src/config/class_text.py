"""Read from a class's text whether it, or a class that it is derived from, defines a method.

The parent must not import what may import a framework. What can't be told from the text isn't guessed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from src.config.model_framework import module_of

# Classes whose methods are their libraries' own.
LIBRARY = ("LightningModule", "LightningDataModule")


def defines(path: str, method: str) -> bool | None:
    """Return whether the class at an import path defines a method, `None` where its text doesn't tell.

    Lightning's own base classes count as defining nothing.
    """
    name = path.rpartition(".")[2]
    if name in LIBRARY:
        return False
    spec = module_of(path)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    try:
        tree = ast.parse(Path(spec.origin).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    module = path.rpartition(".")[0]
    found = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name), None)
    if found is None:
        source = dict(_imported(tree, module, is_package=bool(spec.submodule_search_locations))).get(name)
        return None if source in (None, path) else defines(str(source), method)
    if method in set(_bound(found)):
        return True
    inherited = [defines(_base_path(base, tree, module), method) for base in found.bases]
    if any(inherited):
        return True
    return None if None in inherited else False


def _bound(found: ast.ClassDef) -> Iterator[str]:
    """Yield the names that a class's body binds."""
    for statement in found.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            yield statement.name
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id


def _base_path(base: ast.expr, tree: ast.Module, module: str) -> str:
    """Return the import path of a base class as a module's text has it."""
    text = ast.unparse(base)
    first, _, rest = text.partition(".")
    known = dict(_imported(tree, module, is_package=False))
    start = known.get(first, f"{module}.{first}")
    return f"{start}.{rest}" if rest else start


def _imported(tree: ast.Module, module: str, *, is_package: bool) -> Iterator[tuple[str, str]]:
    """Yield the names that a module's text imports, each with its import path."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (
                    alias.asname or alias.name.split(".")[0],
                    alias.name if alias.asname else alias.name.split(".")[0],
                )
        elif isinstance(node, ast.ImportFrom):
            parts = module.split(".")
            climbed = node.level - is_package
            base = ".".join(parts[: len(parts) - climbed]) if node.level else ""
            base = ".".join(part for part in (base, node.module or "") if part)
            for alias in node.names:
                yield alias.asname or alias.name, f"{base}.{alias.name}"
