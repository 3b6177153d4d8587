"""Read what is asked of described devices: words of `src.train`, and which devices, how many, how joined."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from src.config import Config, ConfigError, command_line
from src.config.mistakes import nearest
from src.predict import sheets
from src.predict.row import Row, parse

# Their steps can be looked at without running them (`looks`), and along which axis their devices lie.
AXES = {"single": "data", "ddp": "data", "fsdp": "shard", "tensor_parallel": "tensor", "pipeline": "pipeline"}
STRATEGIES = tuple(AXES)
# It is looked at where it is named, by the degrees that it is given.
HYBRID = "hybrid"
# What their options ask for goes with some numbers of devices alone.
BY_WORKERS = ("pipeline", HYBRID)
# Their devices have different samples; those of others see the same ones.
DIVIDE_SAMPLES = ("ddp", "fsdp")
# What a run of them on this machine would be.
HERE = ("hardware.device=cpu", "hardware.share_devices=true", "tracking.backend=none")

OWN = ("devices", "hardware", "strategy", "network", "devices_per_node")
MOST_DEVICES = 2**14


@dataclass(frozen=True)
class Asked:
    """A question about described devices.

    Attributes:
        words: of `src.train`, without those of `OWN`.
        hardware: name of a device's data sheet.
        strategies: names of `STRATEGIES`.
        devices: how many, in order.
        network: between nodes, as in a table; `None` where it isn't given.
        per_node: devices of a node; `None` for the data sheet's.
        named: whether strategies were named.
        straight: whether another look tells that the model's operations go with samples.
    """

    words: tuple[str, ...]
    hardware: str
    strategies: tuple[str, ...]
    devices: tuple[int, ...]
    network: str | None = None
    per_node: int | None = None
    named: bool = False
    straight: bool = False

    def called(self, config: Config) -> str:
        """Return what a configuration on the devices is called in the ledger."""
        joined = f", {network}" if (network := self.between(config)) else ""
        return (
            f"{config.workers} x {self.hardware}{joined}, {config.model['name']}, batch {config.global_batch}"
        )

    @property
    def devices_of_a_node(self) -> int:
        """Return how many devices a node has: the data sheet's, where it isn't given."""
        return self.per_node or sheets.device(self.hardware).node

    def between(self, config: Config) -> str | None:
        """Return the network between the nodes of a configuration; `None` on one node."""
        return self.network if config.workers > self.devices_of_a_node else None

    def row(self, config: Config, strategy: str, devices: int) -> Row:
        """Return a configuration on so many of the devices as a table has it.

        Args:
            config: of a run with such micro-batches.
            strategy: its name.
            devices: how many there are.
        """
        axes = {AXES[strategy]: str(devices)} if strategy in AXES else {}
        if strategy == HYBRID:
            axes = {name: str(degree) for name, degree in vars(config.degrees).items()}
        if config.cuts:
            axes |= {"schedule": config.strategy["schedule"], "virtual_stages": str(config.virtual_stages)}
        return parse(
            {
                "device": self.hardware,
                "devices": str(devices),
                "devices_per_node": "" if self.per_node is None else str(self.per_node),
                "network": self.network or "",
                "framework": "pytorch",
                "precision": config.precision,
                "model": str(config.model["name"]),
                "global_batch": str(config.global_batch),
                "micro_batch": str(config.microbatch),
                **axes,
            }
        )


def read(given: Sequence[str], own_words: Sequence[str] = OWN) -> Asked:
    """Read a command line, of which `own_words` are not for `src.train`.

    Raises:
        ConfigError: for a mistake.
    """
    words = command_line.flags_first(list(given))
    own: dict[str, str] = {}
    for word in [word for word in words if word.partition("=")[0] in own_words]:
        key, _, value = word.partition("=")
        if key in own or not value:
            raise ConfigError(f"{word}: {'stands there twice' if key in own else 'names nothing'}")
        own[key] = value
        words.remove(word)
    if "hardware" not in own:
        raise ConfigError("hardware=: name a data sheet of conf/hardware/, as hardware=a100_80gb")
    try:
        sheets.device(own["hardware"])
    except ConfigError as error:
        raise ConfigError(str(error).replace("device=", "hardware=", 1)) from error
    if "network" in own:
        sheets.network(own["network"])
    per_node = own.get("devices_per_node")
    if per_node is not None and (not per_node.isdecimal() or not int(per_node)):
        raise ConfigError(f"devices_per_node={per_node}: must be a whole number from 1 on")
    strategies = tuple(dict.fromkeys(own["strategy"].split(","))) if "strategy" in own else STRATEGIES
    for name in strategies:
        if name not in (known := (*STRATEGIES, HYBRID)):
            raise ConfigError(
                f"strategy={name}: can't be looked at before it runs; {', '.join(known)} can; did you mean "
                f"{nearest(name, known)}?"
            )
    return Asked(
        tuple(words),
        own["hardware"],
        strategies,
        tuple(devices(own.get("devices", "1..8"))),
        own.get("network"),
        None if per_node is None else int(per_node),
        "strategy" in own,
    )


def devices(text: str) -> list[int]:
    """Read numbers of devices: `1..64` are the powers of two between them, `2,6` these; in order.

    Raises:
        ConfigError: for what is neither.
    """
    if not re.fullmatch(r"\d+(\.\.\d+)?(,\d+(\.\.\d+)?)*", text):
        raise ConfigError(f"devices={text}: must be numbers, as 8 or 2,6, or powers of two, as 1..64")
    found: set[int] = set()
    for word in text.split(","):
        first, _, last = word.partition("..")
        numbers = [int(first)] if not last else [2**k for k in range(15) if int(first) <= 2**k <= int(last)]
        found.update(numbers)
    if not found or min(found) < 1 or max(found) > MOST_DEVICES:
        raise ConfigError(f"devices={text}: must be from 1 to {MOST_DEVICES}")
    return sorted(found)
