"""Ask Slurm by its own programs: submit a job, see what has become of it, cancel it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

PROGRAMS = ("sbatch", "squeue", "scancel")
# States of a job that goes on, or will, as squeue(1) names them; of any other it has ended.
GOING_ON = {
    "PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT",
    "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESIZING", "RESV_DEL_HOLD",
}  # fmt: skip
# The controller may be busy.
ANSWER_SECONDS = 60.0
UNKNOWN_JOB = "Invalid job id"


class Refused(Exception):
    """The error where Slurm doesn't do what it is asked for; its text is Slurm's reason."""


@dataclass(frozen=True)
class State:
    """The state of a job as Slurm knows it.

    Attributes:
        name: its state, as RUNNING; empty if Slurm has forgotten the job.
        reason: why it waits, or has ended so, as Resources; else None, the word.
        nodes: those on which it is, as node[1-2]; may be empty.
    """

    name: str = ""
    reason: str = "None"
    nodes: str = ""

    @property
    def ended(self) -> bool:
        """Return whether the job has ended."""
        return self.name not in GOING_ON


def missing_program() -> str | None:
    """Return a program of Slurm's that isn't on this machine, `None` if all are."""
    return next((program for program in PROGRAMS if shutil.which(program) is None), None)


def test(script: str) -> None:
    """Have Slurm look at a batch script, and submit nothing; raise `Refused` where it could never run."""
    _ask(["sbatch", "--test-only"], script)


def submit(script: str) -> str:
    """Submit a batch script and return the job's number; raise `Refused` where Slurm doesn't take it."""
    # The name of one of several clusters follows.
    return _ask(["sbatch", "--parsable"], script).strip().partition(";")[0]


def states(jobs: Sequence[str]) -> dict[str, State]:
    """Return the states of jobs by their numbers; raise `Refused` where Slurm doesn't answer."""
    found = dict.fromkeys(jobs, State())
    # By the user the controller looks for them itself, and doesn't send all that there are.
    command = ["squeue", "--me", "--noheader", "--states=all", "--format=%i|%T|%r|%N"]
    command.append(f"--jobs={','.join(jobs)}")
    try:
        answer = _ask(command)
    except Refused as error:
        if UNKNOWN_JOB in str(error):
            return found
        raise
    for line in answer.splitlines():
        number, *rest = line.strip().split("|")
        found[number] = State(*rest)
    return found


def cancel(jobs: Sequence[str]) -> None:
    """Have jobs end; raise `Refused` where Slurm doesn't answer."""
    _ask(["scancel", *jobs])


def _ask(command: Sequence[str], said: str | None = None) -> str:
    """Run a program of Slurm's with `said` as its input, and return what it prints."""
    try:
        done = subprocess.run(
            command,
            input=said or "",
            capture_output=True,
            text=True,
            timeout=ANSWER_SECONDS,
            # Ctrl-C is this process's.
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refused(f"{command[0]}: {error}") from error
    if done.returncode:
        printed = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        words = (printed or [f"{command[0]} ended with exit status {done.returncode}"])[-1]
        for prefix in ("sbatch: error: ", "sbatch: ", "squeue: error: ", "allocation failure: "):
            words = words.removeprefix(prefix)
        raise Refused(words)
    return done.stdout
