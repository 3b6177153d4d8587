"""Make the table of what fits: a row a strategy and number of devices."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from src.config import ConfigError, command_line, compose
from src.data import available
from src.predict.memory import GIB, RESERVED_GIB

# Their steps can be looked at without running them (`looks`).
STRATEGIES = ("single", "ddp", "fsdp", "tensor_parallel")
# What predictions may be too low by (docs/fits.md).
MARGIN = 0.03


@dataclass(frozen=True)
class Row:
    """The memory of one device of several under a strategy.

    Attributes:
        strategy, devices: of the row.
        samples: of one micro-batch on a device.
        parts: bytes by part at the moment when it holds most; none where it can't be told.
        fits: whether it has room for them.
        most_samples: with which it still has.
        reason: why it can't be told.
    """

    strategy: str
    devices: int
    samples: int | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    fits: bool | None = None
    most_samples: int | None = None
    reason: str = ""

    @property
    def bytes(self) -> float:
        """Return the bytes of all parts."""
        return sum(self.parts.values())

    def cells(self, parts: Sequence[str]) -> list[str]:
        """Return the row's texts, with its parts in this order."""
        sizes = [self.bytes, *(self.parts[part] for part in parts)]
        whole, *each = [f"{size / GIB:.2f}" for size in sizes]
        fits = "yes" if self.fits else "no"
        numbers = [str(self.samples), whole, fits, str(self.most_samples)]
        return [self.strategy, str(self.devices), *numbers, *each]

    def as_json(self) -> dict[str, Any]:
        """Return the row for programs; sizes are bytes."""
        return {
            "strategy": self.strategy,
            "devices": self.devices,
            "samples": self.samples,
            "bytes": self.bytes if self.parts else None,
            "parts": dict(self.parts),
            "fits": self.fits,
            "most_samples": self.most_samples,
            "reason": self.reason or None,
        }


def rows(words: Sequence[str], strategies: Sequence[str], devices: Sequence[int], room: float) -> list[Row]:
    """Look at the steps of strategies, and say what fits into devices of `room` GiB.

    Args:
        words: of the command line, without strategy, devices and hardware.
        strategies: names of `STRATEGIES`.
        devices: how many there are, in order.
        room: of a device, in GiB.

    Raises:
        ConfigError: for a mistake in the words.
    """
    for word in words:
        if word.startswith(("workers=", "scaling=")):
            raise ConfigError(f"{word}: say devices=8, of whom each has its part of batch")
    first = strategies[0] if len(strategies) == 1 else STRATEGIES[0]
    shared = "hardware.share_devices=true"
    plain = [*words, f"strategy={first}", "hardware.device=cpu", shared, "tracking.backend=none"]
    (config,) = compose.cells(command_line.parse(plain))
    if config.framework != "torch" or config.model.get("own_training"):
        raise ConfigError(f"model={config.model['name']}: can't be looked at before it runs")
    if not config.dataset.get("in_memory"):
        available.ensure(config.dataset)
    # Frameworks are imported once nothing is mistyped.
    from src.fits import looks

    batch, parts = config.global_batch, config.microbatches
    usable = (room - RESERVED_GIB) * GIB / (1 + MARGIN)
    found = []
    for strategy in strategies:
        counts = [1] if strategy == "single" else [count for count in devices if count > 1]
        print(f"looking at {strategy} ...", file=sys.stderr, flush=True)
        for count, law in looks.laws(words, strategy, counts):
            divided = 1 if strategy == "tensor_parallel" else count
            if isinstance(law, str):
                found.append(Row(strategy, count, reason=law))
                continue
            most = law.most_samples(count, usable)
            samples, left = divmod(batch, divided * parts)
            if left or not samples:
                reason = f"batch={batch} can't be divided by {divided} devices and {parts} micro-batches"
                found.append(Row(strategy, count, most_samples=most, reason=f"{reason}; {most} samples fit"))
                continue
            held = law.most(count, samples)
            found.append(Row(strategy, count, samples, held, sum(held.values()) <= usable, most))
    return found
