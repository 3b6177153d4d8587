"""Runs that are jobs of Slurm's, on two machines."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from mlflow.tracking import MlflowClient

from tests.cluster.machines import inner
from tests.cluster.slurm import Slurm
from tests.conftest import Commands

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
Until = Callable[[Callable[[], object], float, str], float]
SHORT = ("model=mlp", "dataset.limit=3840", "dataset.test_limit=640", "hardware.device=cpu")
# Ray may be in an environment of its own, and torch's shared memory is of one host.
DDP = ("strategy=ddp", "workers=2", "strategy.all_reduce=backend")


class Submitting:
    """Commands of the first machine, in a folder that the tests see."""

    def __init__(self, slurm: Slurm, python: Path, folder: Path) -> None:
        self.slurm, self.python, self.folder = slurm, python, folder
        self.tracking = f"sqlite:///{folder}/mlflow.db"

    def start(self, *words: str) -> subprocess.Popen[str]:
        return self.slurm.machines.start(
            1,
            [str(self.python), "-m", "src.train", "hardware=slurm", *words],
            {**self.slurm.environment, "PYTHONPATH": str(ROOT), "MLFLOW_TRACKING_URI": self.tracking},
            cwd=self.folder,
        )

    def jobs(self) -> list[str]:
        """The numbers of all jobs that go on."""
        return self.slurm.run(["squeue", "--noheader", "--format=%i"]).stdout.split()

    def runs(self) -> dict[str, str]:
        """MLflow's status of all runs, by their names."""
        client = MlflowClient(self.tracking)
        experiments = [each.experiment_id for each in client.search_experiments()]
        return {run.info.run_name: run.info.status for run in client.search_runs(experiments)}


@pytest.fixture(scope="module")
def submitting(
    slurm: Slurm, ray_python: Path, tmp_path_factory: pytest.TempPathFactory, mnist: None
) -> Submitting:
    return Submitting(slurm, ray_python, tmp_path_factory.mktemp("runs"))


def steps(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def losses(folder: Path) -> list[str]:
    return [row["loss"] for row in steps(folder / "steps.csv") if row["rank"] == "0"]


def test_a_sweep_is_a_job_for_each_run_with_results_as_everywhere_else(
    submitting: Submitting, tmp_path: Path
) -> None:
    process = submitting.start(*SHORT, "-m", "batch=64,128")
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0, out + err
    assert out.count("  ok: accuracy") == 2
    assert err.count("is running on machine1") == 2
    # No file of a job is left.
    assert [path.name for path in (submitting.folder / "runs").glob(".*")] == []
    near = Commands(tmp_path / "here")
    assert near.run(*SHORT, "tracking.backend=none", "batch=128", "out=run").returncode == 0
    found = {
        json.loads(p.read_text())["batch"]: p.parent for p in submitting.folder.glob("runs/*/metrics.json")
    }
    assert sorted(found) == [64, 128]
    for folder in found.values():
        assert yaml.safe_load((folder / "config.yaml").read_text())["hardware"]["name"] == "slurm"
    assert losses(found[128]) == losses(near.folder / "run") != []
    hosts = [json.loads((folder / "environment.json").read_text())["hosts"] for folder in found.values()]
    assert [host["name"] for each in hosts for host in each] == ["machine1"] * 2
    tracked = submitting.runs()
    assert set(tracked.values()) == {"FINISHED"}
    assert set(tracked) == {"batch=64,128", *(folder.name for folder in found.values())}


def test_a_job_that_is_started_again_goes_on_at_its_checkpoint_and_ctrl_c_cancels_it(
    submitting: Submitting, until: Until, tmp_path: Path
) -> None:
    process = submitting.start(*DDP, *SHORT, "epochs=10000", "checkpoint_every=50", "out=again")
    out = submitting.folder / "again"
    recorded = out / "ranks" / "0" / "steps.csv"

    def goes_on(further: Callable[[], object]) -> bool:
        assert process.poll() is None, process.communicate()
        return bool(further())

    until(lambda: goes_on((out / "checkpoint.pt").exists), 200, "a checkpoint")
    until(lambda: goes_on(lambda: len(steps(recorded)) >= 50), 30, "the steps until then")
    first = [float(row["seconds"]) for row in steps(recorded)][:50]
    (job,) = submitting.jobs()
    assert submitting.slurm.run(["scontrol", "requeue", job]).returncode == 0
    until(lambda: goes_on(lambda: submitting.slurm.state(job) == "PENDING"), 30, "it waits again")
    before = len(steps(recorded))
    until(lambda: goes_on(lambda: len(steps(recorded)) > before + 100), 200, "it trains again")
    # These steps were not made again.
    assert [float(row["seconds"]) for row in steps(recorded)][:50] == first
    assert submitting.jobs() == [job]
    numbers = [int(row["step"]) for row in steps(recorded)]
    assert numbers == list(range(1, len(numbers) + 1))
    # On two nodes it has the losses of one: those of ranks are of their halves of a batch.
    near = Commands(tmp_path / "here")
    alone = (*DDP, *SHORT, "hardware.share_devices=true", "tracking.backend=none", "epochs=2", "out=run")
    assert near.run(*alone).returncode == 0
    halves = [[float(row["loss"]) for row in steps(out / "ranks" / rank / "steps.csv")[:60]] for rank in "01"]
    assert [sum(pair) / 2 for pair in zip(*halves, strict=True)] == pytest.approx(
        [float(loss) for loss in losses(near.folder / "run")], rel=1e-6
    )
    inner(process).send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "is pending" in said and said.splitlines()[-1] == "interrupted; every rank was ended"
    assert submitting.jobs() == []
    assert submitting.slurm.state(job) == "CANCELLED"
    assert not [
        pid for pid in submitting.slurm.machines.pids(2) if "rank-" in Path(f"/proc/{pid}/comm").read_text()
    ]


def test_a_job_that_somebody_else_cancels_is_told(submitting: Submitting, until: Until) -> None:
    process = submitting.start("strategy=single", *SHORT, "out=cancelled")
    log = submitting.folder / ".cancelled.job" / "slurm.log"
    until(log.exists, 60, "it runs")
    (job,) = submitting.jobs()
    submitting.slurm.run(["scancel", job])
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 1
    assert f"error: hardware=slurm: job {job} has ended before its run did (CANCELLED, None)" in said
    assert said.splitlines()[-1].endswith(f"its output is {log}")


def test_what_slurm_refuses_is_one_sentence_before_anything_is_submitted(submitting: Submitting) -> None:
    refused = {
        "hardware.partition=none": "hardware.partition=none, hardware.hosts=2): Invalid partition",
        "workers=3": "(hardware.hosts=3): Requested node configuration is not available",
    }
    for word, says in refused.items():
        process = submitting.start(*DDP, *SHORT, word, "batch=126", "out=refused")
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, len(err.splitlines())) == (2, "", 1), err
        assert err.startswith("error: hardware=slurm: Slurm refuses the job") and says in err
    assert not (submitting.folder / "refused").exists()
    assert submitting.jobs() == []
