"""Make the table of what fits: a row a strategy and number of devices."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from src.config import ConfigError, command_line, compose
from src.data import available
from src.fits.law import MOST_SAMPLES
from src.predict.memory import GIB, RESERVED_GIB

# Their steps can be looked at without running them (`looks`).
STRATEGIES = ("single", "ddp", "fsdp", "tensor_parallel")
# By what part of it a step may hold more than is said: what tests allow (docs/metrics.md).
MARGIN = 0.06
# How often the whole model's weights are there on each device before the first step, while it is looked at.
AT_START = {"fsdp": 2.0, "tensor_parallel": 4.0}


@dataclass(frozen=True)
class Row:
    """The memory of one device of several under a strategy.

    Attributes:
        strategy, devices: of the row.
        samples: of one micro-batch on a device.
        parts: bytes by part at the moment of a step when it holds most; none where it can't be told.
        at_start: bytes of weights before the first step.
        fits: whether it has room for them.
        most_samples: with which it still has.
        reason: why it can't be told.
    """

    strategy: str
    devices: int
    samples: int | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    at_start: float = 0.0
    fits: bool | None = None
    most_samples: int | None = None
    reason: str = ""

    @property
    def bytes(self) -> float:
        """Return the bytes of all parts."""
        return sum(self.parts.values())

    def cells(self, parts: Sequence[str]) -> list[str]:
        """Return the row's texts, with its parts in this order."""
        sizes = [self.bytes, self.at_start, *(self.parts[part] for part in parts)]
        whole, start, *each = [f"{size / GIB:.2f}" for size in sizes]
        fits = "yes" if self.fits else "no"
        numbers = [
            str(self.samples),
            whole,
            start,
            fits,
            f"{self.most_samples}{'+' * (self.most_samples == MOST_SAMPLES)}",
        ]
        return [self.strategy, str(self.devices), *numbers, *each]

    def as_json(self) -> dict[str, Any]:
        """Return the row for programs; sizes are bytes."""
        return {
            "strategy": self.strategy,
            "devices": self.devices,
            "samples": self.samples,
            "bytes": self.bytes if self.parts else None,
            "parts": dict(self.parts),
            "bytes_at_start": self.at_start if self.parts else None,
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
    line = command_line.parse([*words, "strategy=single"])
    if line.multirun:
        raise ConfigError("-m: one configuration is looked at; leave it away")
    for word in words:
        if word.lstrip("+").startswith(("workers=", "scaling=", "hardware.")):
            raise ConfigError(
                f"{word}: say devices=8 and hardware=a100_80gb, of whom each has its part of batch"
            )
    here = ["workers=1", "hardware.device=cpu", "hardware.share_devices=true", "tracking.backend=none"]
    for strategy in strategies:
        # A mistake is told before the first look.
        (config,) = compose.cells(command_line.parse([*words, *here, f"strategy={strategy}"]))
    if config.framework != "torch" or config.model.get("own_training"):
        raise ConfigError(f"model={config.model['name']}: can't be looked at before it runs")
    if not config.dataset.get("in_memory"):
        available.ensure(config.dataset)
    # Frameworks are imported once nothing is mistyped.
    from src.fits import looks

    batch, parts = config.batch, config.microbatches
    usable = (room - RESERVED_GIB) * GIB / (1 + MARGIN)
    for strategy in strategies:
        looks.config_of(words, strategy, 1, looks.SAMPLES[0], parts)
    found = []
    for strategy in strategies:
        alone = strategy == "single"
        if not alone and 1 in devices and "single" not in strategies:
            found.append(Row(strategy, 1, reason="one device is strategy=single"))
        counts = [1] if alone else [count for count in devices if count > 1]
        print(f"looking at {strategy} ...", file=sys.stderr, flush=True)
        for count, law, weights in looks.laws(words, strategy, counts, parts):
            divided = 1 if strategy == "tensor_parallel" else count
            if isinstance(law, str):
                found.append(Row(strategy, count, reason=law))
                continue
            start = AT_START.get(strategy, 1.0) * weights
            most = law.most_samples(count, usable) if start <= usable else 0
            samples, left = divmod(batch, divided * parts)
            if left or not samples:
                reason = f"batch={batch} can't be divided by {divided} devices and {parts} micro-batches"
                found.append(Row(strategy, count, most_samples=most, reason=f"{reason}; {most} samples fit"))
                continue
            held = law.most(count, samples)
            fits = max(start, sum(held.values())) <= usable
            found.append(Row(strategy, count, samples, held, start, fits, most))
    return found
