"""Read what is asked of one's own devices: what to train, on how many, for which aim, within which limits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from src.config import Config, ConfigError
from src.predict import asked
from src.recommend import to_target
from src.recommend.question import MOST_COST, STEPS_FROM, batches_of, check_rate, number, split, whole
from src.recommend.to_target import Evidence
from src.report.verdict.objective import COST, THROUGHPUT, TIME, Objective, objective

AIMS = (THROUGHPUT, TIME, COST)
WORDS = ("aim", "limit.hours", "prices")
KEYS = (*WORDS, MOST_COST, STEPS_FROM, "devices", "strategy", "batch", "microbatches")
# Micro-batches for each stage of a pipeline.
EACH_STAGE = (1, 2, 4)
SPEEDS = "hardware.speeds="


@dataclass(frozen=True)
class OwnQuestion:
    """A question about one's own devices.

    Attributes:
        words: of a run, without those of `KEYS`.
        objective: aim and limits.
        most_cost: the most that a training may cost; `None` without a limit.
        devices: how many, in order.
        batches: of which each has an answer.
        microbatches: the number that is asked for; `None` for any.
        strategies: names of those that may be chosen; none for all that learn as one device does.
        steps_from: folder of a study that tells of steps to a target; `None` without one.
    """

    words: tuple[str, ...]
    objective: Objective
    most_cost: float | None
    devices: tuple[int, ...]
    batches: tuple[int, ...]
    microbatches: int | None
    strategies: tuple[str, ...]
    steps_from: Path | None

    @property
    def over_batches(self) -> bool:
        """Return whether the batches compare: with all of them the training ends at the same target."""
        return self.steps_from is not None and self.objective.aim.name in (TIME, COST)

    def price(self, config: Config) -> float | None:
        """Return what an hour of one device costs; `None` without prices.

        Raises:
            ConfigError: for a device without a price.
        """
        prices, kind = self.objective.prices, config.hardware.device
        if prices is None:
            return None
        if kind not in prices.device_hour:
            raise ConfigError(
                f"prices: no price of {kind}; there are prices of {', '.join(prices.device_hour)}"
            )
        return prices.device_hour[kind]

    def evidence(self, config: Config, samples: int) -> Evidence | None:
        """Return what a study tells of the steps to the target of such a run; `None` where none is named."""
        return None if self.steps_from is None else to_target.read(self.steps_from, config, samples)

    def variants(self, strategy: Mapping[str, Any]) -> Iterator[list[str]]:
        """Yield all words of each way to train by a strategy, of which its file is given."""
        supports = strategy["supports"]
        least, most = supports["workers"]["min"], supports["workers"]["max"]
        cut = "partition" in strategy and supports["microbatches"]["max"] != 1
        shares = ["equal", "auto"] if self.speeds and supports.get("batch_shares") else ["equal"]
        for count in self.devices:
            # One device divides nothing.
            if count < max(least, 1 if most == 1 else 2) or (most is not None and count > most):
                continue
            counts = [count * each for each in EACH_STAGE] if cut else [1]
            counts = counts if self.microbatches is None else [self.microbatches]
            for batch, micro, share in itertools.product(self.batches, counts, shares):
                if len(counts) > 1 and batch % micro:
                    continue
                words = [f"strategy={strategy['name']}", f"workers={count}", f"batch={batch}"]
                words += [f"microbatches={micro}"] if micro > 1 or cut else []
                words += [f"batch_shares={share}"] if share != "equal" else []
                yield [*self.words_on(count), *words]

    @property
    def speeds(self) -> list[float]:
        """Return the speeds of the devices that are unequal; none where all are alike."""
        given = next((word for word in self.words if word.startswith(SPEEDS)), None)
        found = [] if given is None else yaml.safe_load(given.removeprefix(SPEEDS))
        return [float(each) for each in found] if isinstance(found, list) else []

    def words_on(self, count: int) -> list[str]:
        """Return the words of a run on so many devices: one alone is the fastest of unequal ones."""
        if count > 1 or not self.speeds:
            return list(self.words)
        kept = [word for word in self.words if not word.startswith(SPEEDS)]
        return [*kept, *([f"{SPEEDS}[{max(self.speeds)}]"] if max(self.speeds) != 1 else [])]


def read(words: Sequence[str]) -> OwnQuestion:
    """Read a command line.

    Raises:
        ConfigError: for a mistake.
    """
    own, kept = split(words, KEYS)
    for word in kept:
        if word.startswith(("strategy.", "workers=", "batch_shares=", "scaling=", "limit.memory_gib=")):
            why = {
                "workers": "say devices=2",
                "scaling": "ways are compared at one global batch, which is batch",
                "limit.memory_gib": "memory isn't predicted from a profile",
            }.get(word.partition("=")[0], "it is chosen here; leave it away")
            raise ConfigError(f"{word}: {why}")
    wanted = objective({}, [f"{key}={own[key]}" for key in WORDS if key in own])
    if wanted.aim.name not in AIMS:
        raise ConfigError(
            f"aim={wanted.aim.name}: isn't predicted from a profile; {', '.join(AIMS)} are, and `--measured` "
            "tells of a study's runs"
        )
    if wanted.aim.name == TIME and STEPS_FROM not in own:
        raise ConfigError(f"aim={TIME}: needs the steps to a target: {STEPS_FROM}=results/batches_to_target")
    check_rate(kept, own.get(STEPS_FROM))
    if MOST_COST in own and wanted.prices is None:
        raise ConfigError(f"{MOST_COST}={own[MOST_COST]}: needs what a device costs: prices=FILE")
    return OwnQuestion(
        tuple(kept),
        wanted,
        None if MOST_COST not in own else number(MOST_COST, own[MOST_COST]),
        tuple(asked.devices(own.get("devices", "1..2"))),
        batches_of(own),
        None if "microbatches" not in own else whole("microbatches", own["microbatches"]),
        tuple(dict.fromkeys(filter(None, own.get("strategy", "").split(",")))),
        None if STEPS_FROM not in own else Path(own[STEPS_FROM]),
    )
