"""Tell how many steps a model needs to reach its target with each batch, by a study's runs.

A curve is of one training: of its runs batch, rate, warm-up and seed alone differ. With each batch the rate
is taken with which the target is reached in the fewest steps, among those that were tried with most seeds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

from src.config import learning_rates
from src.config.keys import Changes, key_of
from src.config.schema import flatten
from src.report.batch_curve import BatchCurve, Reached, rank_of, ratio_of_critical
from src.report.runs import MEASURED, Row, StudyRun
from src.report.views import Column, View, show
from src.run.status import Status

LEVEL = 0.8
# What the runs of a curve have in common, by dotted key.
Key = tuple[tuple[str, str], ...]
# By these the runs of a curve differ; how long one may go on changes nothing before its end.
VARIED = ("batch", "seed", "epochs", "optimizer.lr", "optimizer.scale_lr", "optimizer.warmup_steps")
# A larger batch that takes so many times the steps of a smaller one takes more.
RISES = 1.1
# Rates are told apart by six digits.
DIGITS = 1e-5
# The steps with a rate that is scaled by each rule from the best one of the reference batch.
SCALED = {rule: f"steps_{rule}" for rule in learning_rates.RULES}
STEPS = (
    "framework", "strategy", "model", "dataset", "data_source", "target_accuracy", "batch", "rate",
    "warmup_steps", "rates", "runs", "reached", "steps", "steps_low", "steps_high", "samples", "fitted",
    *SCALED.values(),
)  # fmt: skip
COLUMNS = (
    Column("name", "training"), Column("batch", "batch", "count"), Column("rate", "rate", "number"),
    Column("warmup_steps", "warm-up", "count"),
    Column("rates", "tried", "count"), Column("runs", "runs", "count"), Column("reached", "reached", "count"),
    Column("steps", "steps", "count"), Column("steps_low", "from", "count"),
    Column("steps_high", "to", "count"), Column("samples", "samples", "count"),
    Column("fitted", "by the law", "count"),
    *(Column(key, f"{rule} scaled" if rule != "none" else "not scaled", "count")
      for rule, key in SCALED.items()),
)  # fmt: skip


@dataclass(frozen=True)
class Tried:
    """A rate that was tried with a batch.

    Attributes:
        batch: samples of a step.
        rate: the learning rate, scaled.
        warmup_steps: over which it rises.
        runs: with it, one for each seed.
    """

    batch: int
    rate: float
    warmup_steps: int
    runs: tuple[StudyRun, ...]

    @property
    def steps(self) -> list[float | None]:
        """Return each run's steps to the target; `None` where it wasn't reached."""
        return [run.get("steps_to_target") for run in self.runs]

    @property
    def reached(self) -> list[float]:
        """Return the steps of those that reached it."""
        return [each for each in self.steps if each is not None]

    @property
    def median(self) -> float | None:
        """Return the median of the steps, as long as half of the runs reached the target."""
        rank = rank_of(self.steps)
        return rank if math.isfinite(rank) else None


@dataclass(frozen=True)
class Curve:
    """The steps that one training needs to reach its target, over batches.

    Attributes:
        name: what is trained, to which target.
        tried: every rate with every batch.
    """

    name: str
    tried: tuple[Tried, ...]

    @cached_property
    def best(self) -> dict[int, Tried]:
        """Return by batch the rate that was best, of those that were tried with most seeds."""
        found: dict[int, Tried] = {}
        for batch in sorted({each.batch for each in self.tried}):
            alike = [each for each in self.tried if each.batch == batch]
            most = max(len(each.runs) for each in alike)
            found[batch] = min(
                (each for each in alike if len(each.runs) == most), key=lambda each: rank_of(each.steps)
            )
        return found

    @cached_property
    def fit(self) -> BatchCurve | None:
        """Return the fit to the batches with which every run reached the target; `None` for too few."""
        runs = [
            Reached(each.batch, steps, _steps_since(run, steps))
            for each in self.best.values()
            if None not in each.steps
            for run, steps in zip(each.runs, each.reached, strict=True)
        ]
        try:
            return BatchCurve(tuple(runs))
        except ValueError:
            return None

    def scaled(self, batch: int, rule: str) -> Tried | None:
        """Return what was tried with a batch at the reference batch's best rate, scaled by a rule."""
        reference = self.best.get(learning_rates.REFERENCE_BATCH)
        if reference is None:
            return None
        wanted = reference.rate * learning_rates.factor(rule, batch)
        near = (
            each
            for each in self.tried
            if (each.batch, each.warmup_steps) == (batch, reference.warmup_steps)
            and math.isclose(each.rate, wanted, rel_tol=DIGITS)
        )
        return next(near, None)


def curves(runs: Iterable[StudyRun], alike: Callable[[Mapping[str, Any]], Key] | None = None) -> list[Curve]:
    """Return the curves of runs that had a target, where several batches were trained.

    Those are of one curve whose configurations are `alike`, by default those of one training that is
    distributed in one way.
    """
    alike = alike or identity
    groups: dict[Key, list[StudyRun]] = {}
    for run in runs:
        if _tells(run):
            groups.setdefault(alike(run.config), []).append(run)
    several = {key: own for key, own in groups.items() if len({_batch(run) for run in own}) > 1}
    return [Curve(_name(key, list(several)), _tried(own)) for key, own in several.items()]


def _tells(run: StudyRun) -> bool:
    """Return whether a run tells of steps to a target, from the beginning of a training of one model."""
    known = run.status in MEASURED and run.trains and run.get("target_accuracy") is not None
    whole = run.get("optimizer.lr") is not None and run.global_batch is not None
    return known and whole and not run.config.get("resume")


def identity(config: Mapping[str, Any]) -> Key:
    """Return what all runs of a curve have in common: the keys by which they learn, and the target."""
    flat = flatten(config)
    kept = {
        key: str(value)
        for key, value in flat.items()
        if key_of(key).changes in (Changes.WORK, Changes.TRAINING) and key not in VARIED
    }
    if flat.get("optimizer.schedule") != "constant":
        # Where the rate falls until the end it matters when that is.
        kept["epochs"] = str(flat.get("epochs"))
    kept["target_accuracy"] = str(flat["target_accuracy"])
    return tuple(sorted(kept.items()))


def _name(key: Key, every: Sequence[Key]) -> str:
    """Return what tells a curve from the others: model, data, target, and what else differs."""
    found = dict(key)
    same = [dict(other) for other in every if dict(other).get("model.name") == found.get("model.name")]
    differing = [
        f"{name.rpartition('.')[2]}={value}"
        for name, value in found.items()
        if name not in ("model.name", "dataset.name", "target_accuracy")
        and len({other.get(name) for other in same}) > 1
    ]
    name = f"{found['model.name']} on {found['dataset.name']} to {found['target_accuracy']}"
    return ", ".join([name, *differing])


def _tried(runs: Sequence[StudyRun]) -> tuple[Tried, ...]:
    groups: dict[tuple[int, float, int], dict[int, StudyRun]] = {}
    for run in runs:
        rate = run.get("optimizer.lr") * learning_rates.factor(
            run.get("optimizer.scale_lr") or "none", _batch(run)
        )
        # A repetition with the same seed is the same training.
        place = _batch(run), float(f"{rate:.6g}"), int(run.get("optimizer.warmup_steps") or 0)
        groups.setdefault(place, {}).setdefault(run.get("seed"), run)
    return tuple(Tried(*place, tuple(by_seed.values())) for place, by_seed in groups.items())


def _steps_since(run: StudyRun, steps: float) -> float:
    """Return how many steps before the one that reached the target the last evaluation was."""
    known = [row["step"] for row in run.epochs if isinstance(row.get("step"), int | float)]
    return steps - max((step for step in known if step < steps), default=0) if known else 0.0


def _batch(run: StudyRun) -> int:
    batch = run.global_batch
    assert batch is not None
    return batch


def rows(runs: Iterable[StudyRun]) -> list[Row]:
    """Return a row, with the columns `STEPS`, for each batch of each curve."""
    return [row for curve in curves(runs) for row in _rows(curve)]


def _rows(curve: Curve) -> list[Row]:
    found = []
    for batch, best in curve.best.items():
        reached, middle = best.reached, best.median
        row: Row = {key: best.runs[0].get(key) for key in STEPS}
        row |= {
            "name": curve.name,
            "batch": batch,
            "rate": best.rate,
            "warmup_steps": best.warmup_steps,
            "rates": sum(each.batch == batch for each in curve.tried),
            "runs": len(best.runs),
            "reached": len(reached),
            "steps": middle,
            "steps_low": min(reached, default=None),
            "steps_high": max(reached, default=None),
            "samples": None if middle is None else middle * batch,
            "fitted": None if curve.fit is None else curve.fit.law(batch),
        }
        for rule, key in SCALED.items():
            other = curve.scaled(batch, rule)
            row[key] = None if other is None else other.median
        found.append(row)
    return found


def sentences(found: Sequence[Curve]) -> list[str]:
    """Say what the curves are: their critical batches, whether they share them, and what scaling did."""
    said = [_critical(curve) for curve in found]
    said += [sentence for curve in found if (sentence := _rising(curve))]
    said += [_shared(one, other) for one, other in itertools.combinations(found, 2) if one.fit and other.fit]
    return [*said, *(sentence for curve in found if (sentence := _rates(curve)))]


def _critical(curve: Curve) -> str:
    missing = [str(batch) for batch, best in curve.best.items() if None in best.steps]
    without = f" (without batch {', '.join(missing)}: not all runs reached it)" if missing else ""
    if curve.fit is None:
        return f"{curve.name}: too few batches with which all runs reached it, for a curve{without}."
    low, high = curve.fit.critical_interval(LEVEL)
    if low is None and high is None:
        return f"{curve.name}: runs don't bound the critical batch{without}."
    span = f"above {show(low, 'rate')}" if high is None else f"below {show(high, 'rate')}"
    if low is not None and high is not None:
        span = f"{show(low, 'rate')} to {show(high, 'rate')}"
    return (
        f"{curve.name}: the critical batch, with which steps and samples are both twice their least, is "
        f"{show(curve.fit.critical_batch, 'rate')} ({100 * LEVEL:.0f} %: {span}){without}."
    )


def _rising(curve: Curve) -> str:
    """Say where a larger batch takes more steps than a smaller one, against the law."""
    medians = [(batch, best.median) for batch, best in curve.best.items() if best.median is not None]
    rising = [
        f"{steps:,.0f} with batch {batch}, {fewer:,.0f} with {smaller}"
        for (smaller, fewer), (batch, steps) in itertools.pairwise(medians)
        if steps > RISES * fewer
    ]
    if not rising:
        return ""
    return f"{curve.name}: a larger batch takes more steps, against the law: {'; '.join(rising)}."


def _shared(one: Curve, other: Curve) -> str:
    assert one.fit is not None and other.fit is not None
    low, high = ratio_of_critical(one.fit, other.fit)
    told = "they don't share their curve" if low > 1 or high < 1 else "they may share their curve"
    times = f"{low:.3g} to {high:.3g} times"
    return f"The critical batch of {one.name} is {times} that of {other.name} (95 %): {told}."


def _rates(curve: Curve) -> str:
    """Say how many steps a scaled rate took, over those with the best one."""
    said = []
    for rule in learning_rates.RULES:
        pairs = [
            (batch, curve.scaled(batch, rule), best)
            for batch, best in curve.best.items()
            if batch != learning_rates.REFERENCE_BATCH
        ]
        shown = [
            f"batch {batch}: " + ("not reached" if other.median is None else _times(other, best))
            for batch, other, best in pairs
            if other is not None and best.median is not None
        ]
        if shown:
            said.append(f"{rule} {', '.join(shown)}")
    if not said:
        return ""
    return (
        f"{curve.name}, steps with the rate of batch {learning_rates.REFERENCE_BATCH} scaled, over those "
        f"with the best rate: {'; '.join(said)}."
    )


def _times(other: Tried, best: Tried) -> str:
    """Return how many times the steps of the best rate another one took, with the seeds that both had."""
    seeds = {run.get("seed"): run for run in best.runs}
    ratios = [
        run.get("steps_to_target") / seeds[run.get("seed")].get("steps_to_target")
        for run in other.runs
        if run.get("seed") in seeds
        and run.get("steps_to_target")
        and seeds[run.get("seed")].get("steps_to_target")
    ]
    return f"{median(ratios):.2f}" if ratios else "no seed in common"


def view(runs: Sequence[StudyRun]) -> list[View]:
    """Return the table of curves, if there are any."""
    found = curves(runs)
    shown = [row for curve in found for row in _rows(curve)]
    if not shown:
        return []
    note = (
        "Steps at the first evaluation that reached the target, the median over seeds, and the range of "
        "those that reached it, with the best of so many rates; by the law, S = S_min (1 + B_crit / B), "
        "which is of the middle between that evaluation and the one before."
    )
    return [
        View(
            "steps to the target",
            [column.heading for column in COLUMNS],
            [(Status.OK, [show(row.get(each.key), each.kind) for each in COLUMNS]) for row in shown],
            [note, *sentences(found)],
            [column.kind != "text" for column in COLUMNS],
            [[row.get(column.key) for column in COLUMNS] for row in shown],
        )
    ]
