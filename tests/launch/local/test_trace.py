"""A sampler is told which processes of a run it follows."""

from __future__ import annotations

from pathlib import Path

from src.launch.host import Host
from src.launch.launched import LaunchedProcess
from src.launch.local.trace import followed
from src.launch.process_spec import ProcessSpec
from src.launch.spawn import spawn_child
from src.machine.devices import Device


def test_ranks_of_one_host_have_its_counters_and_those_of_emulated_hosts_their_own(tmp_path: Path) -> None:
    process = spawn_child(["true"], {}, tmp_path / "log")
    device = Device("cpu", 0, (0,))
    spec = ProcessSpec({}, (0,), "rank-0", "worker-0")
    here = LaunchedProcess(0, [device], process, tmp_path / "log", spec)
    there = LaunchedProcess(0, [device], process, tmp_path / "log", spec, Host(holder=4711))
    try:
        # With a name that nothing is counted under, their bytes would be 0.
        assert followed([here])["host_of"] == {} == followed([here])["networks"]
        assert followed([there])["host_of"] == {0: "worker-0"}
        assert followed([there])["networks"] == {"worker-0": "4711"}
    finally:
        process.wait()
