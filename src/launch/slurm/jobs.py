"""Submit runs as jobs of Slurm's, as many at once as are asked for, and wait for them."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Sequence

from src.config import CannotRunHere, Config, ConfigError
from src.launch.cluster import ray_engine
from src.launch.slurm import scheduler
from src.launch.slurm.job import Job, folder_of, new_folder
from src.launch.slurm.scheduler import Refused
from src.launch.slurm.script import run_words, script_of
from src.run.status import Status

# How often the controller is asked: once for all jobs of a command.
POLL_SECONDS = 2.0


def check(config: Config) -> None:
    """Raise `ConfigError` where Slurm wouldn't run a job as configured.

    Raises:
        CannotRunHere: where Slurm or Ray isn't on this machine.
    """
    key = f"hardware={config.hardware.name}"
    if (program := scheduler.missing_program()) is not None:
        raise CannotRunHere(
            f"{key}: needs Slurm, and there is no {program} here; submit from a host that has it"
        )
    if not ray_engine.is_installed():
        raise CannotRunHere(f"{key}: needs Ray, which isn't installed here; {ray_engine.INSTALL}")
    try:
        scheduler.test(script_of(config, folder_of(config), []))
    except Refused as reason:
        raise ConfigError(_refusal(config, reason)) from reason


class Jobs:
    """The jobs of a command that are under way."""

    def __init__(self) -> None:
        self._jobs: list[Job] = []
        self._warned = False

    def submit(self, config: Config, words: Sequence[str], config_dir: str | None) -> bool:
        """Submit a run with the overrides `words`, and the user's own choices in `config_dir`.

        Returns whether Slurm has taken the job; else its reason is printed.
        """
        folder = new_folder(config)
        script = script_of(config, folder, run_words(words, config, config_dir))
        # Ctrl-C in between would leave a job that nobody knows the number of.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        try:
            self._jobs.append(Job(scheduler.submit(script), config))
        except Refused as reason:
            shutil.rmtree(folder, ignore_errors=True)
            print(f"error: {_refusal(config, reason)}", file=sys.stderr, flush=True)
            return False
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return True

    def wait(self, at_most: int = 0) -> list[tuple[Config, Status]]:
        """Wait until no more than `at_most` jobs are under way.

        Returns the configurations of runs that have ended meanwhile, each with the run's status.
        """
        ended: list[tuple[Config, Status]] = []
        while True:
            self._update()
            for job in [job for job in self._jobs if job.state is not None and job.state.ended]:
                self._jobs.remove(job)
                ended.append((job.config, job.end()))
            if len(self._jobs) <= at_most:
                return ended
            time.sleep(POLL_SECONDS)

    def cancel(self) -> None:
        """Cancel all jobs, and wait until they are gone."""
        if not self._jobs:
            return
        numbers = [job.number for job in self._jobs]
        try:
            scheduler.cancel(numbers)
            while not all(state.ended for state in scheduler.states(numbers).values()):
                time.sleep(POLL_SECONDS)
        except Refused as reason:
            print(f"warning: job {', '.join(numbers)} may go on: {reason}", file=sys.stderr)
        for job in self._jobs:
            job.relay()
        self._jobs.clear()

    def _update(self) -> None:
        """See what has become of the jobs."""
        if not self._jobs:
            return
        try:
            states = scheduler.states([job.number for job in self._jobs])
        except Refused as reason:
            # A controller that is started again doesn't end its jobs.
            if not self._warned:
                text = f"warning: Slurm doesn't answer, and is asked again: {reason}"
                print(text, file=sys.stderr, flush=True)
            self._warned = True
            return
        self._warned = False
        for job in self._jobs:
            job.update(states[job.number])


def _refusal(config: Config, reason: Refused) -> str:
    """Return a sentence on a job that Slurm refuses, with what was asked for."""
    hardware = config.hardware
    asked = [
        f"hardware.{key}={hardware[key]}"
        for key in ("partition", "account", "hosts")
        if hardware[key] is not None
    ]
    return f"hardware={hardware.name}: Slurm refuses the job ({', '.join(asked)}): {reason}"
