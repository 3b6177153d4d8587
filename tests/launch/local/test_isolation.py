"""Which runs have a namespace, and what is said where the system forbids one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from src.launch.local import isolation
from src.machine import namespaces
from src.machine.namespaces import NAMESPACE
from tests.machine.test_namespaces import FORBIDDEN, ROOT, needs
from tests.support import config

# Prints the facts of three runs, of which the second alone needs no namespace.
ASK = """
import json
from src.launch.local import isolation
from src.machine import namespaces
from tests.support import config
for strategy in ("mpi", "ddp", "mpi"):
    chosen = config(f"strategy={strategy}")
    isolation.check(chosen)
    with isolation.isolation(chosen) as facts:
        print(json.dumps({**facts, "inside": namespaces.inside()}))
"""


@pytest.mark.parametrize(
    ("words", "isolated"),
    [
        (("strategy=ddp",), False),
        (("strategy=ddp", "hardware.isolate=always"), True),
        (("strategy=mpi",), True),
        (("strategy=tf_multiworker",), True),
        (("strategy=tf_multiworker", "hardware.isolate=never"), False),
        # A strategy that doesn't say what it listens at.
        (("--config-dir", str(ROOT / "tests/plugin/conf"), "strategy=plain_loop"), True),
    ],
    ids=lambda words: "-".join(words[-2:]) if isinstance(words, tuple) else None,
)
def test_a_run_is_isolated_where_others_could_reach_it_or_as_asked(
    words: tuple[str, ...], isolated: bool
) -> None:
    assert isolation.isolates(config(*words)) == isolated


def test_processes_are_told_of_the_namespace_within_the_block_alone() -> None:
    needs(())
    with isolation.isolation(config("strategy=tf_multiworker")) as facts:
        assert facts == {"namespace": True, "forbidden": None}
        assert namespaces.inside()
        holder = Path(os.environ[NAMESPACE].split()[1]).parent
        assert os.readlink(holder / "ns/net") != os.readlink("/proc/self/ns/net")
    assert not namespaces.inside()
    assert not holder.exists()


def test_a_forbidden_namespace_is_a_warning() -> None:
    needs(FORBIDDEN)
    asked = subprocess.run(
        [*FORBIDDEN, sys.executable, "-c", ASK], cwd=ROOT, capture_output=True, text=True, check=True
    )
    forbidden, needless, again = (json.loads(line) for line in asked.stdout.splitlines())
    assert forbidden == again
    assert (forbidden["namespace"], forbidden["inside"]) == (False, False)
    assert "user.max_net_namespaces=0" in forbidden["forbidden"]
    assert needless == {"namespace": False, "forbidden": None, "inside": False}
    # It comes once, from the first run that would have had a namespace.
    (line,) = asked.stderr.splitlines()
    assert line.startswith("warning: this system lets no network namespace be made (")
    assert "user.max_net_namespaces=0" in line


def test_the_command_refuses_what_the_system_forbids_in_one_line(tmp_path: Path) -> None:
    needs(FORBIDDEN)
    command = [*FORBIDDEN, sys.executable, "-m", "src.train", "hardware.isolate=always"]
    asked = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert asked.returncode == 2
    assert asked.stdout == ""
    (line,) = asked.stderr.splitlines()
    assert line.startswith("error: hardware.isolate=always: ")
    assert "user.max_net_namespaces=0" in line
    assert list(tmp_path.iterdir()) == []
