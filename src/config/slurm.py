"""Check the keys of runs that are jobs of Slurm's, and tell who submits a job from who is in one."""

from __future__ import annotations

import math
import os
import re
from typing import Any

from src.config.mistakes import ConfigError
from src.config.run_config import Config, Hardware

# Variable with the folder of the job in which this process is.
JOB = "SCALEGUIDE_JOB"
# Keys of hardware that say something of Slurm's jobs alone.
OF_SLURM = ("partition", "account", "time_limit", "options", "jobs")
# For the nodes of a job to find each other.
START_MINUTES = 5.0
# Options that decide what a job is for this project.
OWN_OPTIONS = ("nodes", "ntasks", "ntasks-per-node", "output", "error", "chdir", "export", "array", "wrap")
BY_KEY = {"partition": "partition", "account": "account", "time": "time_limit"}


def is_submitted(config: Config) -> bool:
    """Return whether this process is to submit a run as a job, and not to run it."""
    return config.hardware.scheduler is not None and JOB not in os.environ


def restarts() -> int:
    """Return how often Slurm has started the job again in which this process is: after a preemption, say."""
    return int(os.environ.get("SLURM_RESTART_COUNT", "0")) if JOB in os.environ else 0


def hosts_of(hardware: Hardware, workers: int) -> int | None:
    """Return `hardware.hosts`; a job has a host for each worker unless the user says otherwise."""
    return workers if hardware.hosts is None and hardware.scheduler else hardware.hosts


def devices_per_host(config: Config) -> int:
    """Return how many devices a job needs on each of its hosts."""
    return math.ceil(config.workers / (config.hardware.hosts or 1))


def minutes_of(config: Config) -> int:
    """Return the minutes that a job may take: what its run is limited to, as often as it may be measured."""
    hardware = config.hardware
    if hardware.time_limit is not None:
        return math.ceil(hardware.time_limit)
    return math.ceil(config.attempts * config.wall_clock_minutes + START_MINUTES)


def check_slurm(config: Config) -> None:
    """Raise `ConfigError` where keys of Slurm's jobs don't fit together, or there is no job."""
    hardware = config.hardware
    if hardware.scheduler is None:
        plain = Hardware(name="local")
        for name in OF_SLURM:
            if hardware[name] != plain[name]:
                raise ConfigError(
                    f"hardware.{name}={hardware[name]}: is of Slurm's jobs; choose hardware=slurm"
                )
        return
    key = f"hardware={hardware.name}"
    if not config.on_cluster:
        raise ConfigError(f"hardware.scheduler={hardware.scheduler}: needs an engine; choose hardware=slurm")
    for name in ("address", "token_file"):
        if hardware[name] is not None:
            raise ConfigError(
                f"hardware.{name}={hardware[name]}: a job of {key} has a cluster of its own; leave it away"
            )
    if (hardware.hosts or 1) > config.workers:
        raise ConfigError(
            f"hardware.hosts={hardware.hosts}: workers={config.workers} need no more than "
            f"{config.workers}; choose that, or fewer"
        )
    for option, value in hardware.options.items():
        _check_option(str(option), value)


def _check_option(option: str, value: Any) -> None:
    """Raise `ConfigError` unless an option of sbatch can be a line of a batch script that is the user's."""
    key = f"hardware.options.{option}={'null' if value is None else value}"
    if not re.fullmatch(r"[a-z][a-z0-9-]*", option):
        raise ConfigError(f"{key}: must be a long option of sbatch without its dashes, as qos=high")
    if option in BY_KEY:
        raise ConfigError(f"{key}: is set by hardware.{BY_KEY[option]}")
    if option in OWN_OPTIONS:
        raise ConfigError(f"{key}: is decided by the run; leave it away")
    fits = value is None or (isinstance(value, str | int) and not isinstance(value, bool))
    if not fits or "\n" in str(value):
        raise ConfigError(f"{key}: must be a text or a whole number, or null for an option without a value")
