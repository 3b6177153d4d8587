"""Find the line of a model's own code, as its author wrote it, at which something happens."""

from __future__ import annotations

import linecache
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import fx

SOURCE = Path(__file__).parents[2]
TORCH = Path(torch.__file__).parent
PYTHON = Path(sysconfig.get_path("stdlib"))
# Longer lines of code are shown in part.
WIDTH = 70


@dataclass(frozen=True)
class Line:
    """A line of a file of Python."""

    file: str
    number: int

    @property
    def code(self) -> str:
        """Return what stands there, without indentation; empty where the file can't be read."""
        return linecache.getline(self.file, self.number).strip()

    @property
    def place(self) -> str:
        """Return the file, as short as it is unambiguous, and the number: `net.py:11`."""
        path = Path(self.file)
        folders = [
            each for each in (_packages(path), Path.cwd()) if each is not None and each in path.parents
        ]
        return f"{path.relative_to(folders[0]) if folders else path}:{self.number}"

    def __str__(self) -> str:
        code = self.code
        shown = f"{code[:WIDTH]}..." if len(code) > WIDTH else code
        return f"{self.place}{f' (`{shown}`)' if shown else ''}"


def of_error(error: BaseException) -> Line | None:
    """Return the line of the model at which an error was raised, `None` where it was outside of it."""
    frames = traceback.walk_tb(error.__traceback__)
    return innermost(Line(frame.f_code.co_filename, number) for frame, number in frames)


def of_node(node: fx.Node | None) -> Line | None:
    """Return the line of the model that asked for an operation of its graph, if that is known."""
    trace = "" if node is None else node.meta.get("stack_trace") or ""
    return innermost(
        Line(file, int(number)) for file, number in re.findall(r'File "([^"]+)", line (\d+)', trace)
    )


def of_caller(frame: FrameType | None) -> Line | None:
    """Return the line of the model from which the project's code of `frame` was called, by way of others."""
    inner: list[Line] = []
    while frame is not None and _is_machinery(frame.f_code.co_filename):
        frame = frame.f_back
    while frame is not None and not _is_machinery(frame.f_code.co_filename):
        inner.append(Line(frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return innermost(reversed(inner))


def of_call(run: Callable[[], object], called: Callable[[FrameType], bool]) -> Line | None:
    """Return the line of the model from which `run` has first called a function that is `called`."""
    found: list[Line | None] = []

    def follow(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and not found and called(frame):
            found.append(of_caller(frame.f_back))

    _traced(run, follow)
    return found[0] if found else None


def of_change(run: Callable[[], object], state: Callable[[], object]) -> Line | None:
    """Return the line of the model during which `run` has first changed what `state` returns."""
    before, last = state(), None
    found: list[Line | None] = []

    def follow(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal last
        if found or _rank(frame.f_code.co_filename) == 0:
            return None
        if event != "call" and state() != before:
            found.append(last)
            return None
        around = frame.f_back if event == "return" else frame
        if around is not None and _rank(around.f_code.co_filename):
            last = Line(around.f_code.co_filename, around.f_lineno)
        return follow

    _traced(run, follow)
    return found[0] if found else None


def _traced(run: Callable[[], object], follow: Callable[[FrameType, str, Any], Any]) -> None:
    before = sys.gettrace()
    sys.settrace(follow)
    try:
        run()
    finally:
        sys.settrace(before)


def innermost(lines: Iterable[Line]) -> Line | None:
    """Return the last of the lines that are the user's own, or else the last one of a library."""
    ranked = [(line, _rank(line.file)) for line in lines]
    for rank in (2, 1):
        own = [line for line, each in ranked if each == rank]
        if own:
            return own[-1]
    return None


def _rank(file: str) -> int:
    """Return 2 for a file of the user's, 1 for one of a library of models, 0 for one of no model."""
    path = Path(file)
    if file.startswith("<") or TORCH in path.parents or _is_machinery(file):
        return 0
    if _packages(path):
        return 1
    return 0 if PYTHON in path.parents else 2


def _is_machinery(file: str) -> bool:
    """Return whether a file is the project's, and none of its models."""
    parents = Path(file).parents
    return SOURCE in parents and SOURCE / "models" not in parents


def _packages(path: Path) -> Path | None:
    """Return the folder of installed packages that a file is in, `None` if it is in none."""
    named = (parent for parent in path.parents if parent.name in ("site-packages", "dist-packages"))
    return next(named, None)
