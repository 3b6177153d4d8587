"""Real runs beside a busy neighbour, which the test starts: they say so, and may be measured again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from src.machine.devices import usable_cores
from src.measure.arithmetic import DISTURBED
from tests.conftest import Commands
from tests.support import STEPS, instances

# Half of each of some milliseconds on its core.
BUSY = """
import os, sys, time
os.sched_setaffinity(0, [int(sys.argv[1])])
print(flush=True)
while True:
    end = time.perf_counter() + 0.01
    while time.perf_counter() < end:
        pass
    time.sleep(0.01)
"""
WORDS = ("hardware.device=cpu", "hardware.sample_seconds=0.05", "optimizer.lr=0.01", "out=run")


@pytest.fixture
def neighbour() -> Iterator[Callable[[int], None]]:
    """Starts one on a core."""
    started: list[subprocess.Popen[bytes]] = []

    def start(core: int) -> None:
        process = subprocess.Popen([sys.executable, "-c", BUSY, str(core)], stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        process.stdout.readline()

    yield start
    for process in started:
        process.kill()
        process.communicate()


def read(commands: Commands, name: str) -> dict:
    return json.loads((commands.folder / "run" / name).read_text())


@pytest.mark.slow
def test_a_run_beside_a_busy_neighbour_is_measured_again_and_says_so(
    mnist: None, commands: Commands, neighbour: Callable[[int], None]
) -> None:
    neighbour(usable_cores()[0])
    completed = commands.run(
        *WORDS, "hardware.devices=[0]", f"dataset.limit={128 * STEPS}", "hardware.repeat_disturbed=1"
    )
    assert completed.returncode == 0, completed.stderr
    metrics, environment = read(commands, "metrics.json"), read(commands, "environment.json")
    assert metrics["cpu_wait_fraction"] > DISTURBED
    again, last = (line for line in completed.stdout.splitlines() if "disturbed:" in line)
    assert again.endswith("; it is measured again, 1 time(s) at most")
    assert "for cores that other processes used" in last
    first, second = environment["attempts"]
    assert first["cpu_wait_fraction"] > DISTURBED
    # The last one counts, whatever its speed.
    assert second == {key: metrics[key] for key in ("cpu_wait_fraction", "steal_fraction")}
    (rank,) = environment["contention"]["ranks"]
    assert rank["involuntary_switches"] > 0
    assert rank["cpu_wait_fraction"] <= rank["all_wait_fraction"]
    assert rank["cpu_wait_fraction"] <= rank["neighbours_fraction"]
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{commands.folder}/mlflow.db")
    experiments = [each.experiment_id for each in client.search_experiments()]
    tracked = client.search_runs(experiments)
    by_status = {run.info.status: run for run in tracked}
    assert len(tracked) == 2
    assert by_status["KILLED"].data.tags["discarded"] == "disturbed"
    assert by_status["FINISHED"].info.run_id == metrics["mlflow_run_id"]
    assert "discarded" not in by_status["FINISHED"].data.tags


@pytest.mark.slow
@pytest.mark.skipif(len(usable_cores()) < 2, reason="needs two cores")
@pytest.mark.parametrize("strategy", instances(["ddp", "parameter_server", "tf_mirrored"], "ddp"))
def test_every_kind_of_job_sees_a_neighbour_on_one_core(
    mnist: None, commands: Commands, neighbour: Callable[[int], None], strategy: str
) -> None:
    neighbour(usable_cores()[1])
    words = ("hardware.devices=[0,1]", "workers=2", f"dataset.limit={128 * 150}", "tracking.backend=none")
    completed = commands.run(*WORDS, f"strategy={strategy}", *words)
    assert completed.returncode == 0, completed.stderr
    assert read(commands, "metrics.json")["cpu_wait_fraction"] > DISTURBED
    ranks = read(commands, "environment.json")["contention"]["ranks"]
    assert ranks[-1]["neighbours_fraction"] > 0.2
