"""Profile what the steps of a model cost, without training it: for predictions of steps."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from src.config import Config, ConfigError
from src.config.mistakes import CommandError
from src.data import available
from src.launch.supervise import exchange_benchmark, inspection, substitute
from src.machine import devices
from src.machine.device_locks import Lease
from src.machine.file_locks import alone
from src.predict.own import added, cost_profile, exchange_times, stand_in
from src.predict.own import cells as own_cells
from src.predict.own.cost_profile import ENTRIES, STEPS, Point, Profile
from src.profile import network
from src.run import files, leases
from src.run.variables import new_token

# Ranks that exchange by torch, and processes that rehearse, find each other so.
TORCH_RANKS = "src.launch.torch_ranks.TorchRanks"
TORCH_EXCHANGES, EVERY_EXCHANGE = "src.runtime.torch.exchange_profile", "train_every"
DEFAULT = "profile"


def profile(words: Sequence[str]) -> None:
    """Profile each cell of a command line, and write `profile.json` into its `out`.

    What was profiled there before stays; of what is measured again, all measurements count.

    Raises:
        ConfigError: for a mistake in the words, or what can't be profiled.
    """
    given = [word for word in words if not word.startswith("out=")]
    out = Path(next((word.partition("=")[2] for word in words if word.startswith("out=")), "") or DEFAULT)
    if out.exists() and not out.is_dir():
        raise ConfigError(f"out={out}: is no folder")
    measure(own_cells.of(given), out)


def measure(cells: Sequence[Config], out: Path) -> None:
    """Profile cells, and write `profile.json` into a folder, as `profile` says."""
    path = out / "profile.json"
    machine = cost_profile.machine()
    if path.exists() and (known := cost_profile.read(path)).machine != machine:
        raise ConfigError(f"{path}: was made on another machine ({known.machine}); choose another out")
    # Cells that differ in what a profile doesn't depend on, as schedules, have one point.
    needed: dict[str, Config] = {}
    for cell in itertools.chain.from_iterable(map(_shares, cells)):
        cost_profile.kind_of(cell)
        rehearsed = stand_in.of(cell)
        place = [cost_profile.identity(rehearsed), rehearsed.microbatch, stand_in.beside(cell)]
        needed.setdefault(json.dumps(place, sort_keys=True), cell)
    local = [_here(cell) for cell in cells]
    between = {
        (exchange_times.between(here), here.workers): _exchanging(here)
        for cell, here in zip(cells, local, strict=True)
        if added.anything(here, stand_in.of(here))
    }
    for each in between.values():
        network.check_runs_here(each)
    for cell in needed.values():
        if not cell.dataset.get("in_memory"):
            available.ensure(cell.dataset)
    # Mistakes in a model of the user's own are told as before a training.
    inspection.inspect([*needed.values()])
    with contextlib.closing(leases.take([*local])) as lease:
        for cell in needed.values():
            point = _measured(cell, _here(cell), lease)
            _add(path, machine, functools.partial(Profile.with_point, point=point))
            print(_line(cell, point), flush=True)
        for (ends, ranks), here in between.items():
            device, links, by = ends
            rows = {"ranks": ranks, "device": device, "links": links, "by": by}
            rows["rows"] = _exchanges(here, lease)
            _add(path, machine, functools.partial(Profile.with_exchanges, exchanges=rows))
    print(path)


def _add(path: Path, machine: str, change: Callable[[Profile], Profile]) -> None:
    """Add to the profile at a path, to which other commands may add, too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with alone(path.absolute(), "the profile"):
        known = cost_profile.read(path) if path.exists() else Profile(machine=machine, path=path)
        change(known).write(path)


def _shares(cell: Config) -> list[Config]:
    """Return a cell, and where its workers have unequal shares of a batch, runs whose workers have those."""
    if cell.batch_shares == "equal":
        return [cell]
    equal = dataclasses.replace(cell, batch_shares="equal", scaling="strong")
    typed = not isinstance(cell.batch_shares, str)
    shares = list(cell.batch_shares) if typed else [cell.worker_batch // 2, 3 * cell.worker_batch // 2]
    parts = sorted({max(1, share // cell.microbatches) for share in (cell.worker_batch, *shares)})
    return [
        dataclasses.replace(equal, batch=part * cell.microbatches * cell.data_parallel_degree)
        for part in (parts[0], parts[-1], *parts[1:-1])
    ]


def _here(cell: Config) -> Config:
    """Return a job on this machine that profiles one rank of a cell: as many processes as share a host."""
    hardware = cell.hardware
    there = devices.find(hardware.device, hardware.cores_per_device, hardware.devices)
    count = min(cell.workers, len(there)) if there else 1
    return dataclasses.replace(cell, workers=count)


def _measured(cell: Config, here: Config, lease: Lease) -> Point:
    """Profile a cell by processes on this machine."""
    kind, whole = cost_profile.kind_of(cell), stand_in.of(cell)
    rehearsal = {
        "entry": whole.strategy["entry"],
        "workers": whole.workers,
        "links": whole.hardware.links,
        "token": new_token(),
    }
    # Nothing is sent: hosts needn't be emulated.
    alone = dataclasses.replace(
        whole,
        strategy={**whole.strategy, "launcher": TORCH_RANKS},
        workers=min(here.workers, stand_in.beside(cell)),
        hardware=dataclasses.replace(here.hardware, links=None, speeds=None),
    )
    doing = f"profiling {cell.strategy['name']} of {cell.model['name']}, {cell.microbatch} samples"
    with tempfile.TemporaryDirectory(prefix="scaleguide-") as folder:
        out = Path(folder, "job")
        changes = {"entry": f"{ENTRIES[cell.framework, kind]}.train", "rehearsal": rehearsal}
        substitute.run(alone, out, lease.of(leases.request_of(alone)), changes, doing, "the steps")
        ranks = [json.loads(path.read_text()) for path in files.of_every_rank(out, files.REHEARSAL).values()]
    if len(ranks) < alone.workers:
        raise CommandError(f"{doing}: {alone.workers - len(ranks)} of {alone.workers} processes left nothing")
    return Point(
        kind=kind,
        model=cell.model["name"],
        identity=cost_profile.identity(whole),
        code=cost_profile.code_of(whole),
        microbatch=whole.microbatch,
        beside=alone.workers,
        ranks=ranks,
    )


def _exchanging(here: Config) -> Config:
    """Return the job whose ranks measure the exchanges of a job."""
    hardware = dataclasses.replace(here.hardware, speeds=None)
    found = dataclasses.replace(here, batch_shares="equal", hardware=hardware)
    name = exchange_times.measured_by(here)
    if name == here.strategy["name"]:
        return found
    return dataclasses.replace(found, strategy=stand_in.strategy_like(name, here.strategy, {}))


def _exchanges(here: Config, lease: Lease) -> list[dict[str, Any]]:
    """Measure all kinds of exchange between a job's ranks."""
    module = exchange_benchmark.profile_of(here)
    with tempfile.TemporaryDirectory(prefix="scaleguide-") as folder:
        out, devices = Path(folder, "job"), lease.of(leases.request_of(here))
        if module != TORCH_EXCHANGES:
            return exchange_benchmark.measure(here, out, devices)
        changes = {"entry": f"{module}.{EVERY_EXCHANGE}"}
        substitute.run(here, out, devices, changes, "measuring exchanges", "the exchanges")
        rows: dict[tuple[str, ...], dict[str, Any]] = {}
        for path in files.of_every_rank(out, files.EXCHANGE).values():
            for row in json.loads(path.read_text()):
                rows.setdefault((row["operation"], *row["between"]), row)
    return list(rows.values())


def _line(cell: Config, point: Point) -> str:
    """Say what was measured."""
    if point.kind == STEPS:
        seconds = median(median(rank["computed"]) for rank in point.ranks)
        exchanges = sum(each["kind"] not in ("wait", "update") for each in point.ranks[0]["events"])
        said = f"computes {seconds * 1e3:.1f} ms of a step, in which it exchanges {exchanges} times"
    else:
        step = point.ranks[0]["step"]
        seconds = sum(step.values())
        said = f"{len(point.ranks[0]['model']['names'])} operations, {seconds * 1e3:.1f} ms a whole step"
    return (
        f"{cell.strategy['name']} {cell.model['name']} workers={cell.workers} batch={cell.batch} "
        f"microbatches={cell.microbatches}: {said}"
    )
