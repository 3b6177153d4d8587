"""Say what a device holds under each strategy and on each number of devices, and whether that fits."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from src.config import Config, ConfigError, command_line, compose
from src.data import available
from src.predict import dry_runs, sheets, side_by_side
from src.predict.asked import BY_WORKERS, HERE, Asked
from src.predict.law import MOST_SAMPLES
from src.predict.ledger import Entry
from src.predict.looked import Looked
from src.predict.memory import GIB, RESERVED_GIB
from src.predict.own import runs

# By what part of it a step may hold more than is said: what tests allow (docs/metrics.md).
MARGIN = 0.06


@dataclass(frozen=True)
class Held:
    """The memory of one device of several under a strategy.

    Attributes:
        strategy, devices: of which is told.
        samples: of one micro-batch on a device.
        parts: bytes by part at the moment of a step when it holds most; none where it can't be told.
        at_start: bytes of weights before the first step.
        fits: whether it has room for them.
        most_samples: with which it still has.
        reason: why it can't be told.
        looked: the steps from which it is told.
        config: of a run with so many samples.
    """

    strategy: str
    devices: int
    samples: int | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    at_start: float = 0.0
    fits: bool | None = None
    most_samples: int | None = None
    reason: str = ""
    looked: Looked | None = field(default=None, repr=False, compare=False)
    config: Config | None = field(default=None, repr=False, compare=False)

    @property
    def bytes(self) -> float:
        """Return the bytes of all parts."""
        return sum(self.parts.values())

    def cells(self, parts: Sequence[str]) -> list[str]:
        """Return the texts of a table's row, with parts in this order."""
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
        """Return what is held for programs; sizes are bytes."""
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


def of(question: Asked) -> list[Held]:
    """Look at the steps of strategies, and say what each holds and whether that fits.

    Raises:
        ConfigError: for a mistake in the words.
    """
    configs, found = composed(question)
    words = question.words
    for strategy, own in configs.items():
        dry_runs.config_of(words, strategy, own.workers, dry_runs.SAMPLES[0], own.microbatches)
    several = [count for count in question.devices if count > 1]
    asked = {name: (own, [1] if name == "single" else several) for name, own in configs.items()}
    with side_by_side.processes(sum(bool(counts) for _, counts in asked.values())) as pool:
        looks = list(side_by_side.looked_at(question, asked, pool))
    for strategy, every in looks:
        own = configs[strategy]
        if strategy != "single" and 1 in question.devices and "single" not in configs:
            found.append(Held(strategy, 1, reason="one device is strategy=single"))
        for count, looked in every:
            made = _held(question, strategy, count, own, looked)
            if made.samples is not None:
                config = dry_runs.config_of(words, strategy, count, made.samples, own.microbatches)
                made = replace(made, config=config)
            found.append(made)
    return found


def composed(question: Asked) -> tuple[dict[str, Config], list[Held]]:
    """Return a run on few devices of each strategy, and those of which there is none, with the reason.

    Raises:
        ConfigError: for a mistake in the words.
    """
    words = question.words
    if command_line.parse([*words, "strategy=single"]).multirun:
        raise ConfigError("-m: one configuration is looked at; leave it away")
    for word in words:
        if word.lstrip("+").startswith(("workers=", "scaling=", "hardware.")):
            raise ConfigError(
                f"{word}: say devices=8 and hardware=a100_80gb, of whom each has its part of batch"
            )
    # A mistake is told before the first look.
    configs: dict[str, Config] = {}
    found: list[Held] = []
    for strategy in question.strategies:
        try:
            configs[strategy] = _few(question, strategy)
        except ConfigError as error:
            # What one can't have, of several that nobody has named, others may.
            if question.named or strategy == "single":
                raise
            found += [Held(strategy, n, reason=str(error)) for n in question.devices if n > 1]
    config = next(iter(configs.values()))
    if config.framework != "torch" or config.model.get("own_training"):
        raise ConfigError(f"model={config.model['name']}: can't be looked at before it runs")
    if not config.dataset.get("in_memory"):
        available.ensure(config.dataset)
    return configs, found


def entries(question: Asked, every: Sequence[Held]) -> list[Entry]:
    """Return what is predicted of devices' memory as the ledger has it."""
    return [
        Entry(
            command="fits",
            kind=f"{each.strategy} on {question.hardware}, memory",
            what=question.called(each.config),
            signature=runs.signature_on(each.config, question.hardware, "bytes"),
            unit="bytes",
            basis="data sheet",
            predicted=each.bytes,
            low=each.bytes,
            high=each.bytes * (1 + MARGIN),
        )
        for each in every
        if each.config is not None
    ]


def _few(question: Asked, strategy: str) -> Config:
    """Compose a run on one device, or on the first number of them that cuts and meshes go with.

    Raises:
        ConfigError: for a mistake, and where they go with none.
    """
    several = [count for count in question.devices if count > 1]
    tried = several if several and strategy in BY_WORKERS else [1]
    errors: list[ConfigError] = []
    for workers in tried:
        words = [*question.words, *HERE, f"workers={workers}", f"strategy={strategy}"]
        try:
            (config,) = compose.cells(command_line.parse(words))
        except ConfigError as error:
            errors.append(error)
        else:
            return config
    raise errors[0]


def _held(question: Asked, strategy: str, count: int, config: Config, looked: Looked | str) -> Held:
    """Say what each of `count` devices holds, by the steps that were looked at."""
    if isinstance(looked, str):
        return Held(strategy, count, reason=looked)
    usable = (sheets.device(question.hardware).memory_gib - RESERVED_GIB) * GIB / (1 + MARGIN)
    batch, parts = config.batch, config.microbatches
    divided = looked.copies or count
    start = looked.at_start * looked.weights
    most = looked.law.most_samples(count, usable) if start <= usable else 0
    samples, left = divmod(batch, divided * parts)
    if left or not samples:
        reason = f"batch={batch} can't be divided by {divided} devices and {parts} micro-batches"
        return Held(strategy, count, most_samples=most, reason=f"{reason}; {most} samples fit")
    held = looked.law.most(count, samples)
    fits = max(start, sum(held.values())) <= usable
    return Held(strategy, count, samples, held, start, fits, most, looked=looked)


def reasons(found: Sequence[Held]) -> list[str]:
    """Return a line for each reason why something can't be told, with all numbers of devices that have it."""
    devices_of: dict[tuple[str, str], list[Held]] = {}
    for each in found:
        if each.reason:
            alike = re.sub(r"workers=\d+|\d+ devices|\d+ samples", "", each.reason)
            devices_of.setdefault((each.strategy, alike), []).append(each)
    return [
        f"{strategy} on {', '.join(str(each.devices) for each in alike)}: {alike[0].reason}"
        for (strategy, _), alike in devices_of.items()
    ]
