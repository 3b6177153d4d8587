"""Break runs on two machines, and look what is lost, noticed and left: `python -m bench.faults`.

The machines are emulated, with Ray on them (`tests/cluster`); it takes root. Each cell of the matrix, a
strategy and a fault, is run several times. A line of the table is a run, and those that are there already are
left out, so that an interrupted bench goes on where it was.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields

import psutil

from bench.broken_run import HELPERS, PARENT_KILLED, STRATEGIES, Run, Trial
from bench.runs import OUT
from src.data.catalog import cache_folder
from tests.cluster.installing import python_with_ray
from tests.cluster.machines import Machines
from tests.cluster.ray_cluster import RayCluster

TABLE = OUT / "faults.csv"
STOPPED_SECONDS, DOWN_SECONDS = 20.0, 5.0


def _stop_rank(run: Run) -> None:
    """Stop a rank for some time."""
    rank = run.process(2, "rank-1")
    rank.suspend()
    time.sleep(STOPPED_SECONDS)
    # The job may have been started again meanwhile.
    with contextlib.suppress(psutil.NoSuchProcess):
        rank.resume()


def _cut_link(run: Run) -> None:
    """Cut the second machine off for some time."""
    run.machines.link_down(2)
    time.sleep(DOWN_SECONDS)
    run.machines.link_up(2)


def _fill_disk(run: Run) -> None:
    """Leave no room on the disk of the second machine, where its rank writes."""
    used = "$(df --output=used --block-size=4096 /tmp | tail -1 | tr -d ' ')"
    # The system refuses less than is there by now, so that a rank that has just written gets another try.
    fill = f"until mount -o remount,nr_blocks={used} /tmp 2>/dev/null; do :; done"
    run.machines.run(2, ["sh", "-c", fill])


FAULTS: dict[str, Callable[[Run], None]] = {
    "rank killed": lambda run: run.process(2, "rank-1").kill(),
    "helper killed": lambda run: run.process(1, HELPERS[run.strategy]).kill(),
    PARENT_KILLED: lambda run: run.parent().send_signal(signal.SIGKILL),
    "agent killed": lambda run: run.agent().kill(),
    "host killed": lambda run: run.machines.power_off(2),
    "rank stopped 20 s": _stop_rank,
    "link down 5 s": _cut_link,
    "disk full": _fill_disk,
}
# The machines are made anew after these.
BREAKING = ("host killed", "disk full", "link down 5 s")


def cells(repetitions: int) -> Iterator[tuple[str, str, int]]:
    """Yield the cells of the matrix: those after which machines go on first."""
    for repetition in range(1, repetitions + 1):
        for strategy in STRATEGIES:
            for fault in sorted(FAULTS, key=lambda name: name in BREAKING):
                if fault != "helper killed" or strategy in HELPERS:
                    yield strategy, fault, repetition


def main() -> int:
    """Run what of the matrix isn't there yet, and print a line a run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=3, help="runs of each cell (default: 3)")
    parser.add_argument("--strategy", choices=STRATEGIES, help="of one strategy alone")
    parser.add_argument("--fault", choices=FAULTS, help="one fault alone")
    chosen = parser.parse_args()
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    done = set()
    if TABLE.exists():
        with TABLE.open(newline="") as file:
            done = {(row["strategy"], row["fault"], int(row["repetition"])) for row in csv.DictReader(file)}
    else:
        TABLE.write_text(",".join(field.name for field in fields(Trial)) + "\n")
    wanted = [
        cell
        for cell in cells(chosen.repetitions)
        if cell not in done and chosen.strategy in (None, cell[0]) and chosen.fault in (None, cell[1])
    ]
    folder = OUT.absolute() / "faults"
    installed = cache_folder() / "ray"
    for each in (folder, installed):
        each.mkdir(parents=True, exist_ok=True)
    python = python_with_ray(installed)
    machines: Machines | None = None
    try:
        for number, (strategy, fault, repetition) in enumerate(wanted, 1):
            if machines is None:
                machines = Machines(2, [folder], [installed])
                cluster = RayCluster(machines, python)
            run = Run(cluster, folder, strategy)
            with ThreadPoolExecutor(1) as pool:
                noticed = pool.submit(run.notices)
                FAULTS[fault](run)
                trial = run.result(fault, repetition, noticed.result())
            with TABLE.open("a", newline="") as file:
                csv.DictWriter(file, [field.name for field in fields(Trial)]).writerow(asdict(trial))
            (folder / "said").replace(folder / f"{strategy}, {fault}, {repetition}.txt")
            print(f"{number}/{len(wanted)} {trial}", flush=True)
            if fault in BREAKING or trial.left:
                machines.close()
                machines = None
    finally:
        if machines is not None:
            machines.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
