"""Read what is asked of devices that nobody has: what to train, for which aim, within which limits."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from src.config import ConfigError
from src.config.mistakes import nearest
from src.config.rule import Rule
from src.predict import asked, sheets
from src.predict.asked import HYBRID, STRATEGIES, Asked
from src.report.verdict.objective import COST, ENERGY, THROUGHPUT, TIME, Objective, objective
from src.report.verdict.prices import Prices

# What predictions tell of; of the others a study's runs do.
MEMORY = "memory"
PREDICTED = (THROUGHPUT, TIME, MEMORY, ENERGY, COST)
OWN = ("aim", "limit.memory_gib", "limit.hours", "prices")
MOST_COST = "limit.cost"
STEPS_FROM = "steps_from"
RATE = ("optimizer.lr", "optimizer.scale_lr", "optimizer.warmup_steps")
KINDS = (*STRATEGIES, HYBRID)


@dataclass(frozen=True)
class Question:
    """A question about devices that nobody has.

    Attributes:
        devices: what they are, how many, how joined, and the words of a run, without its batch.
        objective: aim and limits.
        most_cost: the most that a training may cost; `None` without a limit.
        batches: of which each has an answer.
        microbatches: the number that is asked for; `None` for any.
        strategies: names of those that may be chosen.
        steps_from: folder of a study that tells of steps to a target; `None` without one.
    """

    devices: Asked
    objective: Objective
    most_cost: float | None
    batches: tuple[int, ...]
    microbatches: int | None
    strategies: tuple[str, ...]
    steps_from: Path | None = None

    @property
    def takes_one(self) -> bool:
        """Return whether one device may be the choice."""
        return 1 in self.devices.devices and "single" in self.strategies

    @property
    def room_gib(self) -> float:
        """Return what a device has, or may hold."""
        there = sheets.device(self.devices.hardware).memory_gib
        return min(there, self.objective.memory_gib or there)

    @property
    def over_batches(self) -> bool:
        """Return whether the batches compare: with all of them the training ends at the same target."""
        return self.steps_from is not None and self.objective.aim.name in (TIME, ENERGY, COST)

    @property
    def least_memory(self) -> bool:
        """Return whether what holds least is asked for."""
        return self.objective.aim.name == MEMORY

    @property
    def watts(self) -> float | None:
        """Return the most that a device takes."""
        return sheets.device(self.devices.hardware).watts

    def price(self) -> float | None:
        """Return what an hour of one device costs; `None` without prices.

        Raises:
            ConfigError: for a device without a price.
        """
        prices = self.objective.prices
        if prices is None:
            return None
        found = price_of(self.devices.hardware, prices)
        if found is None:
            raise ConfigError(
                f"prices: no price of {self.devices.hardware}, or of gpu; there are prices of "
                f"{', '.join(prices.device_hour)}"
            )
        return found


def price_of(hardware: str, prices: Prices) -> float | None:
    """Return the price of a described device, by its name, that which drivers report, or its kind."""
    reported = sheets.device(hardware).reported
    for name, price in prices.device_hour.items():
        if name == hardware or re.fullmatch(reported, name):
            return price
    return prices.device_hour.get("gpu")


def read(words: Sequence[str]) -> Question:
    """Read a command line.

    Raises:
        ConfigError: for a mistake.
    """
    own, kept = split(words, (*OWN, MOST_COST, STEPS_FROM, "batch", "microbatches", "strategy"))
    for word in kept:
        if word.startswith("strategy."):
            raise ConfigError(f"{word}: options of strategies are chosen here; leave it away")
    wanted = objective({}, [f"{key}={own[key]}" for key in OWN if key in own])
    _check(wanted, own)
    strategies = tuple(dict.fromkeys(own.get("strategy", ",".join(KINDS)).split(",")))
    for name in strategies:
        if name not in KINDS:
            raise ConfigError(
                f"strategy={name}: can't be looked at before it runs; {', '.join(KINDS)} can; did you mean "
                f"{nearest(name, KINDS)}?"
            )
    check_rate(kept, own.get(STEPS_FROM))
    devices = asked.read(kept)
    there = devices.devices_of_a_node
    if max(devices.devices) > there and devices.network is None:
        raise ConfigError(
            f"network=: is needed, for {max(devices.devices)} devices are on several nodes of {there}"
        )
    cost = own.get(MOST_COST)
    question = Question(
        devices,
        wanted,
        None if cost is None else number(MOST_COST, cost),
        batches_of(own),
        None if "microbatches" not in own else whole("microbatches", own["microbatches"]),
        strategies,
        None if STEPS_FROM not in own else Path(own[STEPS_FROM]),
    )
    question.price()
    if strategies == ("single",) and not question.takes_one:
        raise ConfigError("strategy=single: is one device, which devices leaves out; say devices=1")
    parts = question.microbatches or 1
    if uneven := next((batch for batch in question.batches if batch % parts), None):
        raise ConfigError(f"microbatches={parts}: doesn't divide batch={uneven}")
    if wanted.aim.name == ENERGY and question.watts is None:
        raise ConfigError(f"aim=energy: conf/hardware/{devices.hardware}.yaml has no watts")
    return question


def split(words: Sequence[str], keys: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return what words say of some keys, and all other words.

    Raises:
        ConfigError: for a key that stands there twice, or without a value.
    """
    own: dict[str, str] = {}
    kept: list[str] = []
    for word in words:
        key, _, value = word.partition("=")
        if key not in keys:
            kept.append(word)
        elif key in own or not value:
            raise ConfigError(f"{word}: {'stands there twice' if key in own else 'names nothing'}")
        else:
            own[key] = value
    return own, kept


def check_rate(words: Sequence[str], steps_from: str | None) -> None:
    """Raise `ConfigError` for a rate or warm-up where steps to a target are those with the best one."""
    rate = next((word for word in words if word.partition("=")[0] in RATE), None)
    if steps_from is not None and rate is not None:
        raise ConfigError(
            f"{rate}: steps from {steps_from} are those with each batch's best rate and warm-up, which the "
            "command has; leave it away"
        )


def batches_of(own: Mapping[str, str]) -> tuple[int, ...]:
    """Return the batches that are asked for, in order."""
    return tuple(dict.fromkeys(whole("batch", each) for each in own.get("batch", "64").split(",")))


def _check(wanted: Objective, own: dict[str, str]) -> None:
    if wanted.aim.name not in PREDICTED:
        raise ConfigError(
            f"aim={wanted.aim.name}: isn't predicted; {', '.join(PREDICTED)} are, and `--measured` tells of "
            "a study's runs"
        )
    if wanted.aim.name == TIME and STEPS_FROM not in own:
        raise ConfigError(
            f"aim={TIME}: needs the steps to a target: {STEPS_FROM}=results/STUDY, a study with several "
            "batches and target_accuracy, as batches_to_target"
        )
    if MOST_COST in own and wanted.prices is None:
        raise ConfigError(f"{MOST_COST}={own[MOST_COST]}: needs what a device costs: prices=FILE")


def number(key: str, text: str) -> float:
    """Return the number above 0 that a key is given; raise `ConfigError` for anything else."""
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    Rule(float, minimum=0, above=True).check(key, found if math.isfinite(found) else text)
    return found


def whole(key: str, text: str) -> int:
    """Return the whole number above 0 that a key is given; raise `ConfigError` for anything else."""
    if not text.isdecimal() or not int(text):
        raise ConfigError(f"{key}={text}: must be a whole number from 1 on, or several with commas")
    return int(text)
