"""Jobs of Slurm's, by programs that do as Slurm's are told to: what is submitted, and how each ends."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from src.config import CannotRunHere, ConfigError
from src.config.slurm import minutes_of
from src.launch.cluster import ray_engine
from src.launch.slurm import job, jobs
from src.launch.slurm.jobs import Jobs
from src.launch.slurm.scheduler import State
from src.launch.slurm.script import run_words, script_of
from tests.support import config

WORDS = ("hardware=slurm", "strategy=ddp", "workers=2", "strategy.all_reduce=backend", "model=mlp")
PROGRAMS = {
    "sbatch": """
script=$(cat)
case "$script" in
  *--partition=none*) echo "sbatch: error: invalid partition specified: none" >&2; exit 1
esac
[ "$1" = --test-only ] && exit
number=$(($(ls {folder} | grep -c script) + 1))
echo "$script" > {folder}/script$number
echo "PENDING|Resources|" > {folder}/$number
echo $number
""",
    "squeue": """
for word; do case $word in --jobs=*) jobs=${{word#--jobs=}};; esac; done
for job in $(echo $jobs | tr , ' '); do echo "$job|$(cat {folder}/$job)"; done
""",
    "scancel": """
for job; do echo "CANCELLED|None|" > {folder}/$job; done
""",
}


class FakeSlurm:
    """Programs that take jobs, whose states a test decides."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "state"
        self.programs = folder / "bin"
        for made in (self.folder, self.programs):
            made.mkdir()
        for name, text in PROGRAMS.items():
            program = self.programs / name
            program.write_text(f"#!/bin/sh{text.format(folder=self.folder)}")
            program.chmod(0o755)

    def set(self, job: int, state: str) -> None:
        (self.folder / str(job)).write_text(f"{state}\n")

    def submitted(self) -> list[str]:
        return [path.read_text() for path in sorted(self.folder.glob("script*"))]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    fake = FakeSlurm(tmp_path)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("PATH", f"{fake.programs}:/usr/bin:/bin")
    # A package of that name, where Ray itself isn't installed.
    (tmp_path / "packages/ray").mkdir(parents=True)
    (tmp_path / "packages/ray/__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "packages")
    monkeypatch.setattr(jobs, "POLL_SECONDS", 0.01)
    return fake


def end(name: str, code: int, said: str = "", status: str = "ok") -> None:
    """Writes what the command of a job leaves."""
    folder, out = Path(f".{name}.job"), Path(name)
    (folder / "stderr").write_text(said)
    (folder / "status").write_text(f"{code}\n")
    out.mkdir()
    (out / "metrics.json").write_text(json.dumps({"status": status}))


def test_a_script_asks_for_what_a_run_needs_and_runs_its_command() -> None:
    own = ("+hardware.options.qos=high", "+hardware.options.constraint=a b", "+hardware.options.hold=null")
    own += ("hardware.cores_per_device=3", "hardware.account=us")
    run = config(*WORDS, *own, "workers=4", "hardware.hosts=2", r"out='it\'s'")
    text = script_of(run, Path("/shared/job"), run_words([*WORDS, "out=other"], run, "my conf"))
    for option in (
        *(
            "--nodes=2",
            "--ntasks-per-node=1",
            "--cpus-per-task=6",
            "--exclusive",
            "--requeue",
            "--account=us",
        ),
        *(
            "--qos=high",
            "--constraint='a b'",
            "--hold",
            f"--time={minutes_of(run)}",
            "--job-name='it'\"'\"'s'",
        ),
    ):
        assert f"#SBATCH {option}\n" in text, text
    # As the shell that runs the script reads it.
    command = text[text.index("-m src.train") : text.index("\nexit")]
    said = subprocess.run(["sh", "-c", f"printf '%s\\n' {command}"], capture_output=True, text=True).stdout
    assert said.splitlines() == [
        "-m",
        "src.train",
        "--config-dir",
        "my conf",
        *WORDS,
        r"out='it\'s'",
        "hardware.device=cpu",
    ]


def test_a_job_may_take_what_its_run_may_as_often_as_it_is_measured() -> None:
    run = config(*WORDS, "max_minutes=7", "hardware.grace_minutes=3", "hardware.repeat_disturbed=1")
    assert minutes_of(run) == 2 * (2 * 7 + 3) + 5
    assert minutes_of(config(*WORDS, "hardware.time_limit=90")) == 90


def test_runs_end_each_with_its_own_status(slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    runs = {name: config(*WORDS, "hardware.jobs=4", f"out={name}") for name in "abcd"}
    under_way = Jobs()
    for run in runs.values():
        under_way.submit(run, [*WORDS], None)
    assert len(slurm.submitted()) == 4
    end("a", 0)
    slurm.set(1, "COMPLETED|None|")
    slurm.set(2, "RUNNING|None|node[3-4]")
    assert under_way.wait(3) == [(runs["a"], "ok")]
    end("b", 2, "error: model.hidden=0: too few\n")
    slurm.set(2, "FAILED|NonZeroExitCode|")
    assert under_way.wait(2) == [(runs["b"], "mistake")]
    end("c", 1, "error: rank 1 was killed by SIGKILL\n", "failed")
    slurm.set(3, "FAILED|NonZeroExitCode|")
    slurm.set(4, "TIMEOUT|TimeLimit|")
    (Path(".d.job") / "slurm.log").write_text("CANCELLED DUE TO TIME LIMIT")
    assert under_way.wait() == [(runs["c"], "failed"), (runs["d"], "failed")]
    said = capsys.readouterr().err.splitlines()
    assert "  job 1 is submitted: a" in said
    assert "  job 2 is running on node[3-4]" in said
    assert "  job 4 is pending (Resources)" in said
    assert "job 2: error: model.hidden=0: too few" in said
    assert "job 3: error: rank 1 was killed by SIGKILL" in said
    assert f"  what job 3 has printed is in {Path.cwd() / '.c.job'}" in said
    assert [line for line in said if line.startswith("error:")] == [
        "error: hardware=slurm: job 4 has ended before its run did (TIMEOUT, TimeLimit); its output is "
        f"{Path.cwd() / '.d.job/slurm.log'}"
    ]
    # Those of failures stay.
    assert sorted(path.name for path in Path().glob(".*.job")) == [".c.job", ".d.job"]


def test_a_job_whose_folder_is_elsewhere_says_so(
    slurm: FakeSlurm, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "SHARED_SECONDS", 0.5)
    under_way = Jobs()
    run = config(*WORDS, "out=far")
    under_way.submit(run, [*WORDS], None)
    slurm.set(1, "COMPLETED|None|")
    assert under_way.wait() == [(run, "failed")]
    assert "submit from a folder that the job's nodes share" in capsys.readouterr().err


def test_jobs_are_cancelled(slurm: FakeSlurm) -> None:
    under_way = Jobs()
    for name in "ab":
        under_way.submit(config(*WORDS, f"out={name}"), [*WORDS], None)
    under_way.cancel()
    assert [(slurm.folder / job).read_text() for job in "12"] == ["CANCELLED|None|\n"] * 2
    assert under_way.wait() == []


def test_what_slurm_refuses_leaves_no_folder(slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    run = config(*WORDS, "hardware.partition=none", "out=run")
    with pytest.raises(ConfigError, match=r"hardware.partition=none.*: invalid partition specified: none$"):
        jobs.check(run)
    assert not Jobs().submit(run, [*WORDS], None)
    assert "error: hardware=slurm: Slurm refuses the job" in capsys.readouterr().err
    assert list(Path().iterdir()) == []


def test_what_is_missing_is_named(slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    run = config(*WORDS)
    jobs.check(run)
    monkeypatch.setattr(ray_engine, "is_installed", lambda: False)
    with pytest.raises(CannotRunHere, match="needs Ray"):
        jobs.check(run)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(CannotRunHere, match="needs Slurm, and there is no sbatch here"):
        jobs.check(run)


def test_a_folder_that_is_called_ray_is_not_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = ray_engine.is_installed()
    (tmp_path / "ray").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert ray_engine.is_installed() == installed


def test_a_job_that_slurm_has_forgotten_has_ended_and_one_that_waits_again_has_not() -> None:
    assert State().ended
    assert not State("REQUEUED").ended
    assert not State("PENDING", "BeginTime").ended
