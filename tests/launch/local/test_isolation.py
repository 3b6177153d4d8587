"""Which runs have a namespace, and what is said where the system forbids one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from src.config import ConfigError
from src.launch.local import isolation
from src.machine import namespaces
from src.machine.namespaces import NAMESPACE, NotAllowed
from tests.machine.test_namespaces import FORBIDDEN, ROOT, needs
from tests.support import config


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


def test_a_forbidden_namespace_is_a_warning_and_with_always_a_refusal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def forbid() -> None:
        raise NotAllowed("user.max_net_namespaces=0")

    monkeypatch.setattr(isolation, "Namespace", forbid)
    for remember in (isolation._warn, isolation._why_forbidden):
        monkeypatch.setattr(isolation, remember.__name__, remember.__wrapped__)
    chosen = config("strategy=mpi")
    isolation.check(chosen)
    with isolation.isolation(chosen) as facts:
        assert facts == {"namespace": False, "forbidden": "user.max_net_namespaces=0"}
        assert not namespaces.inside()
    assert capsys.readouterr().err.startswith(
        "warning: this system lets no network namespace be made (user.max"
    )
    with isolation.isolation(config("strategy=ddp")) as facts:
        assert facts == {"namespace": False, "forbidden": None}
    assert capsys.readouterr().err == ""
    with pytest.raises(ConfigError, match=r"hardware\.isolate=always: .* \(user\.max_net_namespaces=0\)"):
        isolation.check(config("strategy=ddp", "hardware.isolate=always"))


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
