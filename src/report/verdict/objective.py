"""Read what is wanted of a way to train: an aim, limits, and the prices of devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from src.config.mistakes import ConfigError, nearest
from src.config.rule import Rule
from src.config.schema import flatten
from src.report.verdict.prices import COST, Prices, read_prices


@dataclass(frozen=True)
class Aim:
    """A figure that is to be as large, or as small, as can be.

    Attributes:
        name: the word by which it is chosen.
        metric: the column of a run's row.
        more: whether the larger figure is the better one.
        at_batch: whether only runs of one batch compare, for the figure is of so many samples at once.
        whole: whether only runs compare that have finished as many epochs of as many samples.
        better: the word for a configuration that is better than another one.
        worse: the word for one that is worse.
        needs: what a run without such a figure has none of.
    """

    name: str
    metric: str
    more: bool
    at_batch: bool
    whole: bool
    better: str
    worse: str
    needs: str

    @property
    def timed(self) -> bool:
        """Return whether the figure depends on how long something took, which other processes change."""
        return self.name not in (ACCURACY, "memory")


ACCURACY, THROUGHPUT, TIME, ENERGY = "accuracy", "throughput", "time_to_accuracy", "energy"
AIMS = {
    aim.name: aim
    for aim in (
        Aim(THROUGHPUT, "samples_per_second", True, True, False, "faster", "slower", "rate of enough steps"),
        Aim(
            TIME, "seconds_to_target", False, False, False, "sooner", "later",
            "time to its target",
        ),
        Aim(ACCURACY, "score", True, False, True, "more accurate", "less accurate", "score"),
        Aim("memory", "memory_peak_bytes", False, True, False, "smaller", "larger", "known memory"),
        Aim(ENERGY, "energy_joules", False, False, True, "thriftier", "hungrier", "energy counter"),
        Aim(COST, COST, False, False, True, "cheaper", "dearer", "training time"),
    )
}  # fmt: skip
_RULES = {
    "aim": Rule(str, tuple(AIMS)),
    "limit.memory_gib": Rule(float, minimum=0, above=True, optional=True),
    "limit.hours": Rule(float, minimum=0, above=True, optional=True),
    "prices": Rule(str, optional=True, filled=True),
}
KEYS = tuple(_RULES)


@dataclass(frozen=True)
class Objective:
    """An aim, and the limits within which a configuration must stay.

    Attributes:
        aim: what is to be as large or as small as can be.
        memory_gib: the most that a device may hold at its peak.
        hours: the longest training, of a run as the study has it.
        prices: what devices cost; the aim `cost` needs them.
    """

    aim: Aim = AIMS[THROUGHPUT]
    memory_gib: float | None = None
    hours: float | None = None
    prices: Prices | None = None


def objective(study: Mapping[str, Any], words: Sequence[str] = ()) -> Objective:
    """Return the objective of a study, which its keys `aim`, `limit` and `prices` name.

    Args:
        study: the contents of that key in params.yaml.
        words: overrides, as `aim=memory` and `limit.hours=2`, which come before the study's own.

    Raises:
        ConfigError: for a word that is no such override, a wrong value, or a file of prices that isn't one.
    """
    chosen = flatten({key: study[key] for key in ("aim", "limit", "prices") if study.get(key) is not None})
    chosen = {f"study.{key}": value for key, value in chosen.items()}
    chosen |= dict(_override(word) for word in words)
    values: dict[str, Any] = {}
    for named, value in chosen.items():
        key = named.removeprefix("study.")
        if key not in _RULES:
            raise ConfigError(
                f"{named}={value}: there is no such key; there are {', '.join(KEYS)}; "
                f"did you mean {nearest(key, KEYS)}?"
            )
        _RULES[key].check(named, value)
        values[key] = value
    aim = AIMS[values.get("aim", THROUGHPUT)]
    if aim.name == COST and values.get("prices") is None:
        raise ConfigError("aim=cost: needs what a device costs: prices=FILE (docs/recommend.md has one)")
    path = values.get("prices")
    prices = None if path is None else read_prices(Path(path))
    return Objective(aim, values.get("limit.memory_gib"), values.get("limit.hours"), prices)


def _override(word: str) -> tuple[str, Any]:
    key, equals, value = word.partition("=")
    if not equals:
        raise ConfigError(f"{word}: must be key=value, with one of the keys {', '.join(KEYS)}")
    try:
        return key, yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"{word}: the value can't be read") from error
