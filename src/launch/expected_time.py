"""Say before a sweep or a study starts how long its runs take at most, and about, by what ran before."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from src.config import Config, load
from src.config.slurm import minutes_of
from src.run import files
from src.run.status import MEASURED
from src.run.tables import read_mapping

# Runs with these values in common take the same time for each epoch, but for their batch.
ALIKE = ("strategy", "model", "dataset", "data_source", "hardware", "workers")
# And these figures say how long that is.
NEEDED = ("batch", "epochs", "train_seconds", "total_seconds")
MINUTE, HOUR = 60, 3600


def sentence(cells: Sequence[Config], taken: int = 0) -> str:
    """Return how many runs there are, and how long they take at most, and about.

    Args:
        cells: the runs that are to be measured, at least one.
        taken: how many more were finished before, and are taken as they are.
    """
    limit = in_words(MINUTE * sum(map(_minutes_at_most, cells)))
    known = [seconds for seconds in about(cells) if seconds is not None]
    expected = ""
    if known:
        part = "" if len(known) == len(cells) else f" for the {len(known)} of which such a run is known"
        expected = f"about {in_words(sum(known))}{part}, "
    before = (
        f"{taken} of {taken + len(cells)} were finished before, and are taken as they are; " if taken else ""
    )
    runs = f"{len(cells)} run{'s' if len(cells) > 1 else ''}"
    keys = dict.fromkeys(key for cell in cells for key in _limited_by(cell))
    return f"{before}{runs}: {expected}at most {limit} on their devices ({', '.join(keys)})"


def about(cells: Sequence[Config]) -> list[float | None]:
    """Return the seconds of each run by the nearest one in its folder that ended before; `None` without one.

    That is a run of the same strategy, model, dataset, number of samples, workers and hardware.
    """
    ended = {folder: list(_ended(folder)) for folder in {Path(cell.out).parent for cell in cells}}
    return [_by_nearest(cell, ended[Path(cell.out).parent]) for cell in cells]


def in_words(seconds: float) -> str:
    """Return a time as `40 s`, `12 min` or `3 h 5 min`, rounded up."""
    if seconds < MINUTE:
        return f"{math.ceil(seconds)} s"
    hours, minutes = divmod(math.ceil(seconds / MINUTE), HOUR // MINUTE)
    if not hours:
        return f"{minutes} min"
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def _minutes_at_most(config: Config) -> float:
    """Return the minutes after which a run is over, whatever happens, its exchange's measurement included."""
    if config.hardware.scheduler is not None:
        return minutes_of(config)
    return config.attempts * config.wall_clock_minutes + config.hardware.probe * config.hardware.grace_minutes


def _limited_by(config: Config) -> tuple[str, ...]:
    """Return the keys that limit a run's time."""
    if config.hardware.scheduler is not None and config.hardware.time_limit is not None:
        return ("hardware.time_limit",)
    return "max_minutes", "hardware.grace_minutes"


def _ended(folder: Path) -> Iterable[tuple[Path, Mapping[str, Any]]]:
    """Yield the directory and the metrics of each run in a folder that has figures."""
    for path in folder.glob(f"*/{files.METRICS}"):
        metrics = read_mapping(path)
        known = [metrics.get(key) for key in NEEDED]
        if metrics.get("status") in MEASURED and all(
            isinstance(each, int | float) and each for each in known
        ):
            yield path.parent, metrics


def _by_nearest(config: Config, ended: Sequence[tuple[Path, Mapping[str, Any]]]) -> float | None:
    """Return the seconds that a run will take by that which is nearest to it, `None` where none is alike."""
    own = Path(config.out)
    mine = {
        "strategy": config.strategy["name"],
        "model": config.model["name"],
        "dataset": config.dataset["name"],
        "data_source": config.dataset["source"],
        "hardware": config.hardware.name,
        # A study's cell may not say it yet.
        "workers": config.workers or config.supports.workers.default,
    }
    alike = [each for each in ended if all(each[1].get(key) == mine[key] for key in ALIKE)]
    # The run that this one will replace, then the one with the nearest batch.
    alike.sort(key=lambda each: (each[0].name != own.name, abs(math.log(each[1]["batch"] / config.batch))))
    for folder, metrics in alike:
        if _samples(folder) == _limits(config):
            train = min(
                metrics["train_seconds"] / metrics["epochs"] * config.epochs, MINUTE * config.max_minutes
            )
            return float(train + metrics["total_seconds"] - metrics["train_seconds"])
    return None


def _limits(config: Config) -> tuple[Any, ...]:
    return tuple(config.dataset.get(key) for key in ("limit", "test_limit", "fraction", "size"))


@cache
def _samples(folder: Path) -> tuple[Any, ...] | None:
    """Return what limits the samples of the run in a folder, `None` where that can't be read."""
    try:
        return _limits(load(folder / files.CONFIG))
    except Exception:
        # Whatever an earlier version, or somebody else, has written there.
        return None
