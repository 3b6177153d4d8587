"""Two workers for the tests (`pytest -n 2`): files that need real time have the first one to themselves.

Most of a suite's time one core idles: tests that compute need one, and tests of runs wait a good deal. Files
are timed in which a test starts runs of its own, or waits for something within seconds; the first worker runs
those, one after the other. Other files, in which nothing is a matter of time, go to whoever is free, and all
workers but the first are of the lowest priority, so that timed tests don't notice them.
"""

from __future__ import annotations

import ast
import os
from functools import cache
from typing import TYPE_CHECKING

from xdist.scheduler import LoadFileScheduling

from tests.support import ROOT

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

FIRST = "gw0"
LOWEST_PRIORITY = 19
# What tests ask for that need real time; a file may also be marked so, by `pytestmark`.
TIMED_FIXTURES = {"commands", "module_commands", "runs", "until"}
TIMED_MARK = "pytest.mark.timed"


@cache
def is_timed(file: str) -> bool:
    """Return whether tests of a file, relative to the repository, need real time."""
    text = (ROOT / file).read_text(encoding="utf-8")
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    asked = {argument.arg for function in functions for argument in function.args.args}
    return bool(asked & TIMED_FIXTURES) or TIMED_MARK in text


def make_way() -> None:
    """Give this process the lowest priority, if it is a worker other than the first."""
    if os.environ.get("PYTEST_XDIST_WORKER", FIRST) != FIRST:
        os.nice(LOWEST_PRIORITY)


class TimedApart(LoadFileScheduling):
    """Gives timed files to the first worker alone, and those before any others."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        is_first = node.gateway.id == FIRST
        free = [file for file in self.workqueue if is_first or not is_timed(file)]
        if not free:
            node.shutdown()
            return
        self.workqueue.move_to_end(max(free, key=is_timed), last=False)
        super()._assign_work_unit(node)
