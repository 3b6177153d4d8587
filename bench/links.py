"""Start runs on emulated hosts, kill them at random moments, and look what is left: `python -m bench.links`.

No speeds are compared: after each kill nothing may be left, or the trial has failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from bench.runs import OUT
from src.launch.emulated.hosts import SWITCH_MODULE

# Overrides of the runs, which would go on for minutes.
WORDS = ("model=mlp", "dataset=mnist", "epochs=1000", "max_minutes=30", "tracking.backend=none")
HARDWARE = ("lan", "vpn", "mixed")
STRATEGIES = ("ddp", "parameter_server", "mpi")
# From its start until a run trains, and a little longer.
LATEST_SECONDS = 12.0
# Within this time everything must be gone.
LIMIT_SECONDS = 10.0


@dataclass(frozen=True)
class Traces:
    """The namespaces, interfaces, qdiscs and processes of this machine at one moment.

    Attributes:
        namespaces: network namespaces of processes, of their open files and of mounts.
        interfaces: in this process's own namespace.
        qdiscs: what shapes those.
        processes: switches, holders, ranks and commands.
    """

    namespaces: frozenset[str]
    interfaces: frozenset[str]
    qdiscs: frozenset[str]
    processes: frozenset[str]

    def beyond(self, before: Traces) -> list[str]:
        """Return what wasn't there before."""
        return sorted(
            one
            for name, now in asdict(self).items()
            for one in (f"{name}: {each}" for each in now - getattr(before, name))
        )


def traces() -> Traces:
    """Look for everything that a run on emulated hosts makes."""
    namespaces, processes = set(), set()
    for process in psutil.process_iter():
        folder = Path(f"/proc/{process.pid}")
        with contextlib.suppress(OSError):
            namespaces.add(os.readlink(folder / "ns/net"))
        with contextlib.suppress(OSError):
            for file in (folder / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if (link := os.readlink(file)).startswith("net:["):
                        namespaces.add(link)
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if {SWITCH_MODULE, "src.worker", "src.launch.mpi.agent", "src.train"} & set(words):
                processes.add(f"{process.pid} {' '.join(words)[:120]}")
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        namespaces |= {word for word in line.split() if word.startswith("net:[")}
    qdiscs = subprocess.run(["tc", "qdisc"], capture_output=True, text=True).stdout.splitlines()
    return Traces(
        frozenset(namespaces),
        frozenset(os.listdir("/sys/class/net")),
        frozenset(qdiscs),
        frozenset(processes),
    )


@dataclass(frozen=True)
class Trial:
    """One start and kill.

    Attributes:
        words: the run's overrides.
        victim: `parent`, `switch` or `holder`.
        signal: by which it was killed.
        moment: seconds after the command was given.
        reached: what there was of the run by then: `parent`, `switch`, `hosts`, `ranks`.
        seconds: until nothing was left, `None` if something was.
        left: what that was.
    """

    words: tuple[str, ...]
    victim: str
    signal: str
    moment: float
    reached: str
    seconds: float | None
    left: list[str]


def start_and_kill(folder: Path, draw: random.Random, *, latest: float = LATEST_SECONDS) -> Trial:
    """Start a run in `folder`, kill it or one of its processes at a random moment, and look what is left.

    Raises RuntimeError where the run ends before that: such a trial tells nothing.
    """
    before = traces()
    words = (f"strategy={draw.choice(STRATEGIES)}", f"hardware={draw.choice(HARDWARE)}", *WORDS)
    victim, number = draw.choice(
        [("parent", signal.SIGKILL)] * 3
        + [("parent", signal.SIGTERM), ("switch", signal.SIGKILL), ("holder", signal.SIGKILL)]
    )
    moment = draw.uniform(0.0, latest)
    with (folder / "output").open("wb") as output:
        run = subprocess.Popen(
            [sys.executable, "-m", "src.train", *words, "overwrite=true"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    with contextlib.suppress(subprocess.TimeoutExpired):
        run.wait(moment)
    if run.poll() is not None:
        raise RuntimeError(f"ended before it was killed: {(folder / 'output').read_text(errors='replace')}")
    found = psutil.Process(run.pid).children(recursive=True)
    switches = [each for each in found if SWITCH_MODULE in _words(each)]
    ranks = [each for each in found if _name(each).startswith(("rank-", "coordinator"))]
    reached = ("ranks" if ranks else "hosts") if len(switches) > 1 else "switch" if switches else "parent"
    # The switch is its holders' parent; there may be none yet.
    chosen = {"parent": [], "switch": switches[:1], "holder": switches[1:2]}[victim]
    victim = victim if chosen else "parent"
    with contextlib.suppress(ProcessLookupError):
        os.kill(chosen[0].pid if chosen else run.pid, number)
    if victim in ("holder", "switch"):
        # A run can do without a holder, and begins again on new hosts without a switch: it goes on until it
        # is asked to end. (A Ctrl-C is nothing to what a shell has put in the background.)
        run.terminate()
    begun = time.monotonic()
    with contextlib.suppress(subprocess.TimeoutExpired):
        run.wait(LIMIT_SECONDS)
    while (left := traces().beyond(before)) and time.monotonic() - begun < LIMIT_SECONDS:
        # No event tells of what the kernel takes apart.
        time.sleep(0.02)
    seconds = None if left else time.monotonic() - begun
    run.kill()
    run.wait()
    return Trial(words, victim, signal.Signals(number).name, round(moment, 2), reached, seconds, left)


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def main() -> int:
    """Run the trials and print a line for each; return 1 if something was left after one."""
    parser = argparse.ArgumentParser(prog="python -m bench.links", description=__doc__)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    draw = random.Random(args.seed)
    trials = []
    with tempfile.TemporaryDirectory(prefix="scaleguide-links-") as folder:
        for number in range(args.trials):
            trial = start_and_kill(Path(folder), draw)
            trials.append(trial)
            how = f"gone after {trial.seconds:.2f} s" if trial.seconds is not None else f"LEFT: {trial.left}"
            print(
                f"{number + 1}: {' '.join(trial.words[:2])}, {trial.victim} by {trial.signal} after "
                f"{trial.moment} s ({trial.reached}): {how}",
                flush=True,
            )
    clean = [trial.seconds for trial in trials if trial.seconds is not None]
    reached = ", ".join(f"{name} {count}" for name, count in Counter(t.reached for t in trials).items())
    print(f"{len(clean)} of {len(trials)} left nothing; at most {max(clean, default=0):.2f} s; {reached}")
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "links.json").write_text(json.dumps([asdict(trial) for trial in trials], indent=1))
    return int(len(clean) < len(trials))


if __name__ == "__main__":
    sys.exit(main())
