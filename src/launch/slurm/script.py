"""Write the batch script of a run: a Ray cluster of the job's nodes, and the run's command on the first."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from string import Template

from src.config import Config
from src.config.slurm import JOB, devices_per_host, minutes_of

# Files of a job's folder: what Slurm and Ray say, what the command prints, and its exit status.
LOG, OUT, ERR, STATUS = "slurm.log", "stdout", "stderr", "status"
BODY = Template(
    r"""
export PATH=$path:"$$PATH"
# Ray would have ranks give way to all others, and be the first to be killed where memory is short.
export RAY_worker_niceness=0 RAY_worker_oom_score_adjustment=0 RAY_memory_monitor_refresh_ms=0
# A silent node counts as lost after 15 seconds, not 65; nodes end so long after the first one.
export RAY_health_check_initial_delay_ms=1000 RAY_health_check_period_ms=1000
export RAY_health_check_timeout_ms=2000 RAY_health_check_failure_threshold=5
export RAY_gcs_rpc_server_reconnect_timeout_s=15 RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=120
export RAY_USAGE_STATS_ENABLED=0
# Nobody but this job's processes knows the token of its cluster.
RAY_AUTH_TOKEN=$$($python -c 'import secrets; print(secrets.token_hex(32))') || exit
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN
# Many systems know themselves as 127.0.1.1, by which no other node reaches them.
address=$$({ getent ahostsv4 "$$SLURMD_NODENAME"; hostname -I | tr ' ' '\n'; } |
  awk '$$1 != "" && $$1 !~ /^127\./ { print $$1; exit }')
# Between the ports of Ray's workers and those that a system gives away itself. A job that is started again
# has another one: the cluster that it had may be ending still.
port=$$((20000 + (SLURM_JOB_ID + 1009 * $${SLURM_RESTART_COUNT:-0}) % 10000))
export $job=$folder
rm -f $folder/$status
# Ray knows one cluster a node, and refuses to start where the one that the job had is ending still. The nodes
# are this job's alone.
[ "$${SLURM_RESTART_COUNT:-0}" = 0 ] || srun ray stop --force >/dev/null
# Once the command has ended, the nodes would wait for each other: they are killed instead.
srun --cpus-per-task=$cpus --kill-on-bad-exit=0 --wait=0 \
  ray symmetric-run --address "$$address:$$port" --min-nodes $nodes --num-cpus=1 \
  --object-store-memory=500000000 --disable-usage-stats -- \
  sh -c '"$$@" >>"$$$job/$out" 2>>"$$$job/$err"; echo $$? >"$$$job/$status"
    ray stop --force >/dev/null; scancel --signal=KILL "$$SLURM_JOB_ID.$$SLURM_STEP_ID"' sh \
  $command
exit "$$(cat $folder/$status || echo 1)"
"""
)


def script_of(config: Config, folder: Path, words: Sequence[str]) -> str:
    """Return the text of a run's batch script.

    Args:
        config: the run's configuration.
        folder: that of the job's own files.
        words: the command line of the run alone.
    """
    command = [sys.executable, "-m", "src.train", *words]
    body = BODY.substitute(
        path=shlex.quote(str(Path(sys.executable).parent)),
        python=shlex.quote(sys.executable),
        folder=shlex.quote(str(folder)),
        job=JOB,
        **{"log": LOG, "out": OUT, "err": ERR, "status": STATUS},
        cpus=_cores(config),
        nodes=config.hardware.hosts,
        command=" ".join(map(shlex.quote, command)),
    )
    return "\n".join(["#!/bin/bash", *(f"#SBATCH {option}" for option in _options(config, folder)), body])


def run_words(words: Sequence[str], config: Config, config_dir: str | None) -> list[str]:
    """Return the command line of one run.

    Args:
        words: its overrides.
        config: its configuration, with what is decided where the job is submitted.
        config_dir: the folder of the user's own choices.
    """
    out = config.out.replace("\\", r"\\").replace("'", r"\'")
    decided = {"out": f"'{out}'", "hardware.device": config.hardware.device}
    kept = [word for word in words if word.lstrip("+").partition("=")[0] not in decided]
    flags = [] if config_dir is None else ["--config-dir", config_dir]
    return [*flags, *kept, *(f"{key}={value}" for key, value in decided.items())]


def _cores(config: Config) -> int:
    """Return how many cores a job needs on each of its nodes."""
    each = config.hardware.cores_per_device if config.hardware.device == "cpu" else 1
    return devices_per_host(config) * int(each)


def _options(config: Config, folder: Path) -> list[str]:
    """Return the options of sbatch, the user's own last."""
    hardware = config.hardware
    chosen = {
        "job-name": Path(config.out).name,
        "chdir": str(Path.cwd()),
        "output": str(folder / LOG).replace("%", "%%"),
        "open-mode": "append",
        "export": "ALL",
        "nodes": hardware.hosts,
        "ntasks-per-node": 1,
        "cpus-per-task": _cores(config),
        # What is measured has its nodes to itself, and so has Ray, which knows one cluster a node.
        "exclusive": None,
        "time": minutes_of(config),
        # After a preemption or the loss of a node the job is started again.
        "requeue": None,
    }
    if hardware.device == "gpu":
        chosen["gpus-per-node"] = devices_per_host(config)
    chosen |= {key: hardware[key] for key in ("partition", "account") if hardware[key] is not None}
    chosen |= hardware.options
    return [
        f"--{name}" if value is None else f"--{name}={shlex.quote(str(value))}"
        for name, value in chosen.items()
    ]
