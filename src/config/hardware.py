"""Define what a run's hardware is: the devices, how processes are started there, and how they are joined."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Hardware(Mapping[str, Any]):
    """The keys of a file of conf/hardware/, which conf/config.yaml explains, with its defaults.

    A run from before there was a key has its default. Code of users' own may read it as a mapping, as it may
    the other groups.
    """

    device: str = "auto"
    cores_per_device: int = 1
    start_method: str = "auto"
    isolate: str = "auto"
    devices: Sequence[int] | None = None
    wait_minutes: float = 60
    share_devices: bool = False
    speeds: Sequence[float] | None = None
    speed_period_ms: float = 10
    warmup_steps: int = 5
    sample_seconds: float = 0.5
    repeat_disturbed: int | None = None
    grace_minutes: float = 10
    probe: bool = False
    probe_seconds: float = 5
    links: Mapping[str, Any] | None = None
    engine: str | None = None
    address: str | None = None
    token_file: str | None = None
    hosts: int | None = None
    lost_seconds: float = 15
    scheduler: str | None = None
    partition: str | None = None
    account: str | None = None
    time_limit: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    jobs: int = 1
    allowed: Mapping[str, Any] = field(default_factory=dict)
    name: str

    def __getitem__(self, key: str) -> Any:
        """Return the value of a key."""
        return vars(self)[key]

    def __iter__(self) -> Iterator[str]:
        """Return the keys, in the order in which `config.yaml` has them."""
        return iter(vars(self))

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(vars(self))
