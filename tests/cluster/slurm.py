"""Start Slurm on emulated machines.

slurm = Slurm(machines)
slurm.run(["srun", "-N2", "hostname"]).stdout        # machine1 and machine2
job = slurm.submit("#!/bin/sh\\nhostname\\n", "--nodes=2")
slurm.wait(job)                                      # COMPLETED
"""

from __future__ import annotations

import re
import secrets
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.cluster.boot import OWN_FOLDER
from tests.cluster.machines import Machines

# On each machine; /run is its own.
FOLDER = "/run/slurm"
ENVIRONMENT = {"SLURM_CONF": f"{FOLDER}/slurm.conf"}
SOCKET = "/run/munge/munge.socket.2"
START_SECONDS, POLL_SECONDS = 30.0, 0.05
# Of slurm.conf(5). Nothing here needs cgroups, an accounting database, or more cores than a machine has.
SETTINGS = f"""
ClusterName=machines
SlurmUser=root
AuthType=auth/munge
# A job that is started again waits so long.
AuthInfo=cred_expire=5
CryptoType=crypto/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=1
ReturnToService=2
KillWait=2
StateSaveLocation={FOLDER}
SlurmdSpoolDir={FOLDER}
SlurmctldPidFile={FOLDER}/slurmctld.pid
SlurmdPidFile={FOLDER}/slurmd.pid
PartitionName=all Nodes=ALL Default=YES State=UP
"""
# slurmd looks for it whatever its plugins are.
CGROUPS = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n"
# States of a job that goes on, as scontrol(1) names them.
GOING_ON = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING"}


class NotStarted(Exception):
    """The error where Slurm doesn't come up; its text is what its processes printed."""


class Slurm:
    """A node on each machine, called as the machine is, and the controller on the first.

    It ends with the machines.

    Attributes:
        machines: those on which it runs.
        environment: the variables of every process that deals with it.
    """

    def __init__(self, machines: Machines) -> None:
        """Start Slurm, and wait until all nodes are idle.

        Raises:
            NotStarted: where one isn't.
        """
        self.machines = machines
        self.environment = ENVIRONMENT
        key = secrets.token_bytes(128)
        for machine in machines.numbers:
            self._configure(machine, key)
            files = [f"--{name}-file={FOLDER}/munge.{name}" for name in ("key", "log", "pid", "seed")]
            self._start(machine, ["munged", "--foreground", *files])
        self._until(lambda: all(machines.path(each, SOCKET).exists() for each in machines.numbers))
        self._start(1, ["slurmctld", "-D"])
        for machine in machines.numbers:
            self._start(machine, ["slurmd", "-D"])
        self._until(lambda: self.states() == {"idle"})

    def run(
        self,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        cwd: str | Path = OWN_FOLDER,
        timeout: float = 60.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command of Slurm's, such as srun, on the first machine to its end."""
        return self.machines.run(1, command, {**self.environment, **(env or {})}, cwd, timeout)

    def states(self) -> set[str]:
        """Return the states of all nodes; none if the controller doesn't answer."""
        return set(self.run(["sinfo", "--noheader", "--Node", "--format=%T"]).stdout.split())

    def submit(self, script: str, *options: str, env: Mapping[str, str] | None = None) -> str:
        """Submit the text of a script by sbatch; return the job's number."""
        path = OWN_FOLDER / "script"
        self.machines.path(1, path).write_text(script)
        done = self.run(["sbatch", "--parsable", *options, str(path)], env)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def state(self, job: str) -> str:
        """Return the state of a job, such as COMPLETED."""
        shown = self.run(["scontrol", "show", "job", job])
        found = re.search(r"JobState=(\w+)", shown.stdout)
        assert found, shown.stderr
        return found[1]

    def wait(self, job: str, seconds: float = 60.0) -> str:
        """Wait until a job has ended; return its state. `sbatch --wait` looks at it every ten seconds."""
        end = time.monotonic() + seconds
        while (state := self.state(job)) in GOING_ON:
            assert time.monotonic() < end, f"job {job} is {state} after {seconds:g} s"
            time.sleep(POLL_SECONDS)
        return state

    def _configure(self, machine: int, key: bytes) -> None:
        """Write a machine's files of Slurm and munge."""
        for folder in (FOLDER, Path(SOCKET).parent):
            self.machines.path(machine, folder).mkdir(mode=0o755)
        numbers = self.machines.numbers
        nodes = [f"NodeName=machine{n} NodeAddr={self.machines.address(n)} CPUs=1" for n in numbers]
        controller = f"SlurmctldHost=machine1({self.machines.address(1)})"
        texts = {"slurm.conf": "\n".join([controller, *nodes, SETTINGS]), "cgroup.conf": CGROUPS}
        for name, text in texts.items():
            self.machines.path(machine, f"{FOLDER}/{name}").write_text(text)
        secret = self.machines.path(machine, f"{FOLDER}/munge.key")
        secret.touch(mode=0o600)
        secret.write_bytes(key)

    def _start(self, machine: int, command: list[str]) -> None:
        """Start a process of Slurm's, which prints to a file of its machine."""
        with self.machines.path(machine, f"{FOLDER}/{command[0]}.out").open("w") as out:
            self.machines.start(machine, command, self.environment, stdout=out, stderr=subprocess.STDOUT)

    def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition of the start."""
        end = time.monotonic() + START_SECONDS
        while not condition():
            if time.monotonic() > end:
                raise NotStarted(self._printed())
            time.sleep(POLL_SECONDS)

    def _printed(self) -> str:
        """Return what the processes have printed so far."""
        parts = []
        for machine in self.machines.numbers:
            for path in sorted(self.machines.path(machine, FOLDER).glob("*.out")):
                parts.append(f"{path.name} of machine {machine}:\n{path.read_text()}")
        return "\n".join(parts)
