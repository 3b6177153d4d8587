"""Hold idle emulated links against what was asked of them: `python -m bench.link_accuracy`.

For each file of conf/hardware/ with links, hosts are made several times, and each way between two of them is
measured as before a run. A rate must be within 10 %, a round trip within 10 % or half a millisecond.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from bench.runs import OUT
from src.config import CONF, command_line, compose
from src.launch.emulated import link_measurement
from src.launch.emulated.hosts import EmulatedHosts
from src.launch.host import COORDINATOR_HOST, server_host, worker_host
from src.report.network import deviates

HOSTS = (worker_host(0), worker_host(1), server_host(0), COORDINATOR_HOST)


@dataclass(frozen=True)
class Way:
    """One way between two hosts, and what was measured of it each time."""

    hardware: str
    sender: str
    receiver: str
    rate_asked: float | None
    trip_asked: float
    rates: list[float]
    trips: list[float]

    @property
    def fits(self) -> bool:
        """Return whether each measurement is as near to what was asked as it must be."""
        asked = {"rate_mbit": self.rate_asked, "round_trip_ms": self.trip_asked}
        measured = zip(self.rates, self.trips, strict=True)
        return not any(deviates(asked, {"rate_mbit": rate, "round_trip_ms": trip}) for rate, trip in measured)


def measure(hardware: str, times: int) -> Iterator[Way]:
    """Make a network's hosts so many times, and yield what was measured of each way."""
    words = ["strategy=parameter_server", "workers=2", f"hardware={hardware}", "hardware.share_devices=true"]
    (config,) = compose.cells(command_line.parse(words))
    rounds = []
    for _ in range(times):
        with tempfile.TemporaryDirectory(prefix="scaleguide-") as logs:
            hosts = EmulatedHosts(config, Path(logs))
            try:
                for name in HOSTS:
                    hosts.host(name)
                rounds.append(link_measurement.measure(hosts.placed, hosts.own[0].process.pid))
            finally:
                hosts.close()
    for ways in zip(*rounds, strict=True):
        asked, found = ways[0]["asked"], [way["measured"] for way in ways]
        yield Way(
            hardware,
            ways[0]["from"],
            ways[0]["to"],
            asked["rate_mbit"],
            asked["round_trip_ms"],
            [each["rate_mbit"] for each in found],
            [each["round_trip_ms"] for each in found],
        )


def main() -> int:
    """Measure all networks and print a table; return 1 if a link is not as asked."""
    parser = argparse.ArgumentParser(prog="python -m bench.link_accuracy", description=__doc__)
    parser.add_argument("--times", type=int, default=5)
    args = parser.parse_args()
    names = [path.stem for path in sorted((CONF / "hardware").glob("*.yaml")) if "links:" in path.read_text()]
    print("| hardware | from | to | Mbit/s asked | measured | round trip asked | measured, ms | |")
    print("| --- | --- | --- | ---: | ---: | ---: | ---: | --- |")
    every = []
    for name in names:
        for way in measure(name, args.times):
            every.append(way)
            rate = "any" if way.rate_asked is None else f"{way.rate_asked:g}"
            spread = f"{median(way.rates):,.1f} ({min(way.rates):,.1f} to {max(way.rates):,.1f})"
            trips = f"{median(way.trips):.2f} ({min(way.trips):.2f} to {max(way.trips):.2f})"
            verdict = "" if way.fits else "not as asked"
            print(
                f"| {name} | {way.sender} | {way.receiver} | {rate} | {spread} | {way.trip_asked:g} | "
                f"{trips} | {verdict} |",
                flush=True,
            )
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "link_accuracy.json").write_text(json.dumps([asdict(way) for way in every], indent=1))
    return int(not all(way.fits for way in every))


if __name__ == "__main__":
    sys.exit(main())
