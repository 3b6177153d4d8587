"""Read and check `hardware.links`, which says how emulated hosts are joined.

For each job of a run, `worker`, `server` and `coordinator`, it has the link of a host of that job: `up` from
the host to the switch and `down` to it, with `rate_mbit`, `delay_ms` and `loss` of each. A list in the place
of a number has an entry for each host of the job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from src.config.mistakes import ConfigError, nearest
from src.config.rule import Rule
from src.config.run_config import Config
from src.machine.link import Direction, Link

JOBS = ("worker", "server", "coordinator")
WAYS = ("up", "down")
RULES = {
    "rate_mbit": Rule(float, minimum=0.001, maximum=1_000_000, optional=True),
    "delay_ms": Rule(float, minimum=0, maximum=10_000),
    "loss": Rule(float, minimum=0, maximum=0.99),
}
# Addresses of hosts differ in one byte.
MOST_HOSTS = 250


def link_of(config: Config, name: str) -> Link:
    """Return the link of an emulated host, as `worker-0`, `server-1` or `coordinator`."""
    job, _, number = name.partition("-")

    def of(way: Mapping[str, Any]) -> Direction:
        values = {key: way[key] for key in RULES}
        own = {key: value[int(number or 0)] for key, value in values.items() if isinstance(value, list)}
        return Direction(**{**values, **own})

    assert config.hardware.links is not None
    described = config.hardware.links[job]
    return Link(of(described["up"]), of(described["down"]))


def check_links(config: Config) -> None:
    """Raise `ConfigError` where a run can't have the emulated hosts that `hardware.links` describes."""
    links = config.hardware.links
    if links is None:
        return
    key = f"hardware={config.hardware.name}"
    if config.on_cluster:
        raise ConfigError(f"{key}: has hosts of a cluster (engine) or emulated ones (links), and not both")
    check_crosses_hosts(config)
    if config.hardware.device != "cpu":
        raise ConfigError(f"{key}: emulated hosts have CPU devices; choose hardware.device=cpu")
    if config.hardware.isolate == "never":
        raise ConfigError(
            f"hardware.isolate=never: {key} has networks of its own, which lead nowhere else; leave it away"
        )
    counts = {"worker": config.workers, "server": config.strategy.get("servers", 0), "coordinator": 1}
    if sum(counts.values()) > MOST_HOSTS:
        raise ConfigError(
            f"{key}: workers={config.workers}: there can be {MOST_HOSTS} emulated hosts at most"
        )
    _check_names("hardware.links", links, JOBS)
    for job, link in links.items():
        _check_names(f"hardware.links.{job}", link, WAYS)
        for way, values in link.items():
            path = f"hardware.links.{job}.{way}"
            _check_names(path, values, tuple(RULES))
            for name, value in values.items():
                for entry in _entries(f"{path}.{name}", value, job, counts[job]):
                    RULES[name].check(f"{path}.{name}", entry)


def check_crosses_hosts(config: Config) -> None:
    """Raise `ConfigError` where the processes of a strategy must be on one host."""
    key, strategy = f"hardware={config.hardware.name}", config.strategy["name"]
    # True, or for some options the values with which processes share no memory.
    supports = config.supports.hosts
    if not supports:
        raise ConfigError(
            f"{key}: the processes of strategy {strategy} don't talk over a network; choose hardware=local"
        )
    for option, values in supports.items() if isinstance(supports, Mapping) else ():
        if (value := config.strategy[option]) not in values:
            allowed = " or ".join(map(str, values))
            raise ConfigError(f"{key}: strategy.{option}={value} doesn't cross hosts; choose {allowed}")


def _check_names(path: str, mapping: Any, names: tuple[str, ...]) -> None:
    """Raise `ConfigError` unless `mapping` has these keys and no others."""
    if not isinstance(mapping, Mapping):
        raise ConfigError(f"{path}={mapping}: must be a mapping with {', '.join(names)}")
    for name in mapping:
        if name not in names:
            hint = nearest(str(name), names)
            raise ConfigError(f"{path}.{name}: no such key; it has {', '.join(names)}; did you mean {hint}?")
    for name in names:
        if name not in mapping:
            raise ConfigError(f"{path}: lacks {name}; it has {', '.join(names)}")


def _entries(path: str, value: Any, job: str, hosts: int) -> Iterator[Any]:
    """Yield a value, or each of a list, which must have one for each of so many hosts of a job."""
    if not isinstance(value, list):
        yield value
        return
    if hosts and len(value) != hosts:
        raise ConfigError(f"{path}={value}: has {len(value)} entries, and {hosts} {job}(s) need one each")
    yield from value
