"""Read what an hour of each device costs, from a file of the user's own, and price a run's training."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from src.config import choices
from src.config.mistakes import ConfigError, nearest
from src.config.rule import Rule
from src.measure.arithmetic import training_cost
from src.report import comparison
from src.report.runs import Row, StudyRun
from src.run.status import MEASURED

COST = "cost"
KEYS = ("currency", "date", "source", "device_hour")


@dataclass(frozen=True)
class Prices:
    """The price of an hour of each device, by the device's name or kind (`cpu`, `gpu`).

    Attributes:
        currency: the word that follows an amount.
        date: when the prices held.
        source: who asks for them.
        device_hour: the price of one device for an hour.
    """

    currency: str
    date: str
    source: str
    device_hour: Mapping[str, float]

    def of(self, run: StudyRun) -> float | None:
        """Return what a run's training alone costs on its devices; `None` where its time isn't known.

        Raises:
            ConfigError: for a device without a price.
        """
        device = comparison.hardware(run)
        names = [device["names"], str(device["device"])]
        price = next((self.device_hour[name] for name in names if name in self.device_hour), None)
        if price is None:
            raise ConfigError(
                f"prices: no price of {' or '.join(filter(None, names))}, on which {run.cell} ran; "
                f"there are prices of {', '.join(self.device_hour)}"
            )
        return training_cost(price, run.get("workers") or 1, run.get("train_seconds"))


def add_costs(rows: Sequence[Row], prices: Prices | None) -> list[Row]:
    """Return merged rows with what each run's training costs, and the currency, where devices have prices."""
    if prices is None:
        return list(rows)
    costs = {row["cell"]: prices.of(row["run"]) for row in rows if row["status"] in MEASURED}
    return [{**row, COST: costs.get(row["cell"]), "currency": prices.currency} for row in rows]


def read_prices(path: Path) -> Prices:
    """Read a file of prices; raise `ConfigError` for one that lacks a key or has a wrong one."""
    content = choices.read(path)
    for key in content:
        if key not in KEYS:
            raise ConfigError(f"{path}: there is no key {key}; did you mean {nearest(str(key), KEYS)}?")
    for key in KEYS:
        if content.get(key) is None:
            raise ConfigError(f"{path}: lacks `{key}`; docs/recommend.md has an example")
    hours = content["device_hour"]
    if not isinstance(hours, Mapping) or not hours:
        raise ConfigError(f"{path}: device_hour must be a mapping, as {{cpu: 0.05}}")
    for name, price in hours.items():
        Rule(float, minimum=0, above=True).check(f"{path}: device_hour.{name}", price)
    priced = {str(name): float(price) for name, price in hours.items() if math.isfinite(price)}
    return Prices(str(content["currency"]), str(content["date"]), str(content["source"]), priced)
