"""Measure what the links between hosts give, and what each backend's exchanges take over them by size."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from src.config import CannotRunHere, Config, ConfigError, command_line, compose
from src.launch.launcher import launcher_of
from src.launch.local import isolation
from src.launch.supervise import choose_hosts, exchange_benchmark
from src.run import files, leases
from src.run.tables import write_text

# One strategy for each backend, and what of a training they need, which isn't done.
DEFAULTS = {
    "strategy": "ddp,mpi,parameter_server,tf_multiworker",
    "dataset": "synthetic",
    "model": "mlp",
    "workers": "2",
    # The largest exchange takes its time over a slow link.
    "hardware.probe_seconds": "300",
}

# Exchanges as they are called in text.
SHOWN = {"all_reduce": "all-reduce", "send_receive": "send/receive"}


def profile(words: Sequence[str]) -> None:
    """Measure each cell of a command line, print the tables, and write the result.

    Raises:
        ConfigError: for a mistake in the words, or what can't be measured here.
    """
    given = {word.partition("=")[0]: word for word in words}
    out = given.pop("out", "out=").partition("=")[2]
    if out and Path(out).exists() and not Path(out).is_dir():
        raise ConfigError(f"out={out}: is no folder")
    defaults = [f"{key}={value}" for key, value in DEFAULTS.items() if key not in given]
    # A sweep, of which `out` isn't a part: cells have folders that go again.
    line = command_line.parse(["-m", *defaults, *given.values()])
    cells = compose.cells(line)
    for cell in cells:
        _check(cell)
    network: dict[str, Any] = {}
    with contextlib.closing(leases.take(cells)) as lease:
        for cell in cells:
            with tempfile.TemporaryDirectory(prefix="scaleguide-") as folder:
                rows = exchange_benchmark.measure(cell, Path(folder), lease.of(leases.request_of(cell)))
                path = Path(folder, files.NETWORK)
                found = json.loads(path.read_text()) if path.exists() else {}
            network = {**found, **network, "exchange": [*network.get("exchange", []), *rows]}
            # Servers and their links are known where there are servers.
            network["links"] = _joined(network.get("links", []), found.get("links", []))
            network["hosts"] = {**found.get("hosts", {}), **network.get("hosts", {})}
            _print(rows)
    if network["links"]:
        _print_links(network["links"])
    if out:
        Path(out).mkdir(parents=True, exist_ok=True)
        write_text(Path(out, files.NETWORK), json.dumps(network, indent=1))
        print(Path(out, files.NETWORK))


def _check(cell: Config) -> None:
    """Raise `ConfigError` where a cell's exchanges can't be measured, here or at all."""
    if exchange_benchmark.profile_of(cell) is None:
        raise ConfigError(f"strategy={cell.strategy['name']}: has no exchanges to measure")
    check_runs_here(cell)


def check_runs_here(cell: Config) -> None:
    """Raise `ConfigError` where a cell's processes can't be had on this machine."""
    try:
        launcher_of(cell).check(cell)
        isolation.check(cell)
        choose_hosts.check(cell)
    except CannotRunHere as error:
        raise ConfigError(str(error)) from error


def _joined(known: list[dict[str, Any]], further: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return links, each way once."""
    ways = {(way["from"], way["to"]) for way in known}
    return [*known, *(way for way in further if (way["from"], way["to"]) not in ways)]


def _print(rows: Sequence[dict[str, Any]]) -> None:
    """Print what exchanges took: a line an exchange, a column a size."""
    sizes = sorted({each["bytes"] for row in rows for each in row["sizes"]})
    table = Table("backend", "exchange", "between", *map(_size, sizes), "latency", "bandwidth", box=None)
    for row in rows:
        took = {each["bytes"]: each["seconds"] for each in row["sizes"]}
        rate = row["bytes_per_second"]
        table.add_row(
            row["backend"],
            SHOWN.get(row["operation"], row["operation"]),
            ", ".join(row["between"]),
            *(_seconds(took.get(size)) for size in sizes),
            _seconds(row["latency_seconds"]),
            "-" if rate is None else f"{rate * 8e-6:,.0f} Mbit/s",
        )
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def _print_links(links: Sequence[dict[str, Any]]) -> None:
    """Print what was asked of each way between two hosts, and what it gave while nothing else used it."""
    table = Table("from", "to", "asked", "round trip", "measured", "round trip", box=None)
    for way in links:
        asked, measured = way["asked"], way["measured"]
        rate = asked["rate_mbit"]
        table.add_row(
            way["from"],
            way["to"],
            "any" if rate is None else f"{rate:g} Mbit/s",
            f"{asked['round_trip_ms']:g} ms",
            f"{measured['rate_mbit']:,.1f} Mbit/s",
            f"{measured['round_trip_ms']:.2f} ms",
        )
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def _size(size: int) -> str:
    return f"{size // 1024} KiB" if size < 1 << 20 else f"{size >> 20} MiB"


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
