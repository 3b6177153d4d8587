"""A run is `ok` if its processes say so: whoever ends them otherwise, it is a crash with a name."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.conftest import Commands
from tests.support import instances

RUN = (
    "model=custom", "model.path=tests.plugin.model.ending.build", "dataset.limit=640", "out=run",
    "hardware.device=cpu", "hardware.share_devices=true", "tracking.backend=none",
)  # fmt: skip
# A limit in which a rank can import torch, and which the kernel enforces in a second.
LIMIT_BYTES = 2**30


def ends(commands: Commands, *words: str) -> tuple[int, list[str], str]:
    completed = commands.run(*RUN, *words)
    status = json.loads((commands.folder / "run/metrics.json").read_text())["status"]
    assert "Traceback" not in completed.stderr.replace("| Traceback", "")
    assert commands.left() == []
    return completed.returncode, completed.stderr.splitlines(), status


# 77, 78 and 79 mean something where the process says so itself.
@pytest.mark.parametrize("code", instances([0, 77, 78, 79], 0, 77))
@pytest.mark.slow
def test_a_status_that_the_model_s_code_gives_is_a_crash(mnist: None, commands: Commands, code: int) -> None:
    returned, lines, status = ends(commands, "+model.options.how=exit", f"+model.options.code={code}")
    assert (returned, status) == (1, "failed")
    assert lines == [
        f"error: rank 0 ended before its training did, with exit status {code}, by the model's code or a "
        "library; its log is run/logs/rank-0.log"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["raise", "signal"])
def test_so_is_a_request_to_exit_and_a_signal_without_a_name(
    mnist: None, commands: Commands, how: str
) -> None:
    code = 40 if how == "signal" else 0
    returned, lines, status = ends(commands, f"+model.options.how={how}", f"+model.options.code={code}")
    assert (returned, status) == (1, "failed")
    end = "was killed by signal 40" if how == "signal" else "failed with exit status 1"
    assert lines[0] == f"error: rank 0 {end}; its log is run/logs/rank-0.log"


@pytest.mark.slow
@pytest.mark.parametrize("strategy", instances(["ddp", "hogwild", "mpi", "tf_multiworker"], "ddp", "mpi"))
def test_one_of_several_is_named(mnist: None, commands: Commands, strategy: str) -> None:
    path = "tests.plugin.model.ending.build"
    if strategy.startswith("tf_"):
        path = "tests.plugin.model.ending.build_keras"
    further = ("strategy.max_restarts=0",) if strategy == "hogwild" else ()
    words = (f"strategy={strategy}", "workers=2", f"model.path={path}", *further)
    returned, lines, status = ends(commands, *words, "+model.options.how=exit", "+model.options.rank=1")
    assert (returned, status) == (1, "failed")
    assert lines[-1].startswith("error: rank 1 ended before its training did, with exit status 0")


@pytest.mark.slow
def test_a_rank_that_the_kernel_kills_for_want_of_memory_is_out_of_memory(
    mnist: None, commands: Commands, memory_limit: Callable[[int], list[str]]
) -> None:
    # Ranks that are forked by a server outside would be outside, too.
    commands.forks = False
    commands.python = memory_limit(LIMIT_BYTES)
    further = ("strategy=ddp", "workers=2", "hardware.start_method=spawn")
    completed = commands.run(*RUN, *further, "+model.options.how=eat", "+model.options.rank=1")
    assert completed.returncode == 0, completed.stderr
    assert json.loads((commands.folder / "run/metrics.json").read_text())["status"] == "out_of_memory"
    assert commands.left() == []


@pytest.mark.slow
def test_another_kill_is_a_crash(mnist: None, commands: Commands) -> None:
    returned, lines, status = ends(commands, "+model.options.how=signal", "+model.options.code=9")
    assert (returned, status) == (1, "failed")
    assert lines[0].startswith("error: rank 0 was killed by SIGKILL")
