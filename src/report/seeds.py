"""Tell how far scores scatter over seeds: each configuration's mean, and its difference from one device's.

Accuracies of one seed say little: which of two strategies is ahead is often a matter of the draw. So means
stand with Student's interval, and differences are taken seed by seed, with the noise of all configurations of
one training pooled (`repeats.difference`).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

from src.config.keys import Changes, key_of
from src.config.schema import flatten
from src.report import comparison, repeats
from src.report.runs import Row, StudyRun
from src.report.views import Column, View, show
from src.run.status import Status

SEEDS = (
    "framework", "label", "model", "dataset", "data_source", "workers", "batch", "epochs", "metric", "seeds",
    "score", "score_low", "score_high", "difference", "difference_low", "difference_high", "word",
)  # fmt: skip
# Runs that differ in keys of these alone train the same model on the same samples, distributed in other ways.
DISTRIBUTED = ("strategy", "workers", "microbatches", "batchnorm", "scaling", "batch", "seed")
SCORE = "score"


def rows(every: Sequence[Row]) -> list[Row]:
    """Return a row, with the columns `SEEDS`, for each configuration that several seeds were measured of.

    Args:
        every: the merged row of each run.
    """
    groups: dict[str, list[Row]] = {}
    for row in every:
        if _tells(row):
            groups.setdefault(comparison.configuration(row["run"], seed=False), []).append(row)
    several = [alike for alike in groups.values() if len(_by_seed(alike)) > 1]
    return [_row(alike, several) for alike in several]


def _tells(row: Row) -> bool:
    """Return whether a run's score is that of a whole training, which nothing has stopped before its end."""
    run = row["run"]
    whole = row["status"] in (Status.OK, Status.DIVERGED) and not run.config.get("stop_at_target")
    return whole and run.trains and row.get(SCORE) is not None


def _training(run: StudyRun) -> tuple[Any, ...]:
    """Return what the runs of one training have in common, however it is distributed."""
    kept = {
        key: str(value)
        for key, value in flatten(run.config).items()
        if key_of(key).changes in (Changes.WORK, Changes.TRAINING)
        and key.partition(".")[0] not in DISTRIBUTED
    }
    return run.get("framework"), run.global_batch, *sorted(kept.items())


def _by_seed(alike: Sequence[Row]) -> dict[int, float]:
    """Return the mean score of each seed's runs."""
    found: dict[int, list[float]] = {}
    for row in alike:
        found.setdefault(row["run"].get("seed"), []).append(float(row[SCORE]))
    return {seed: mean(scores) for seed, scores in found.items()}


def _row(alike: Sequence[Row], every: Sequence[Sequence[Row]]) -> Row:
    first, scores = alike[0], _by_seed(alike)
    low, high = repeats.mean_interval([*scores.values()]) or (None, None)
    row: Row = {key: first.get(key) for key in SEEDS}
    row |= {"seeds": len(scores), "score": mean(scores.values()), "score_low": low, "score_high": high}
    training = _training(first["run"])
    same = [group for group in every if _training(group[0]["run"]) == training]
    plain = [group for group in same if comparison.is_plain(group[0]["run"])]
    base = min(plain, key=lambda group: group[0].get("microbatches") or 1, default=None)
    if base is None or base is alike:
        return row
    pool = [_by_seed(group) for group in same]
    between = repeats.difference(scores, _by_seed(base), pool, len(pool))
    if between is not None and between.interval is not None:
        low, high = between.interval
        row |= {
            "difference": (low + high) / 2,
            "difference_low": low,
            "difference_high": high,
            "word": "told apart" if low > 0 or high < 0 else "as good, as far as known",
            "among": len(pool),
        }
    return row


def view(every: Sequence[Row]) -> list[View]:
    """Return the table of scores over seeds, if several were measured of any configuration."""
    found = rows(every)
    if not found:
        return []
    accuracies = {row.get("metric") for row in found} <= {None, "accuracy"}
    kind, points = ("accuracy", "points") if accuracies else ("loss", "loss")
    columns = (
        Column("label", "strategy"), Column("model", "model"), Column("dataset", "data"),
        Column("workers", "workers", "count"), Column("batch", "batch", "count"),
        Column("seeds", "seeds", "count"), Column("score", "mean", kind),
        Column("score_low", "95 % from", kind), Column("score_high", "to", kind),
        Column("difference", "from one device", points),
        Column("difference_low", "95 % from ", points), Column("difference_high", "to ", points),
        Column("word", "that is"),
    )  # fmt: skip

    def cell(row: Row, column: Column) -> str:
        value = row.get(column.key)
        if column.kind == "points" and value is not None:
            return f"{100 * value:+.2f}"
        return show(value, column.kind)

    counts = sorted({row["among"] for row in found if row.get("among")})
    among = (
        f" these intervals hold for all {' or '.join(map(str, counts))} of a training at once."
        if counts
        else ""
    )
    note = (
        "The mean over seeds of whole trainings, with Student's interval. From one device's, seed by seed, "
        f"with the noise of all configurations of one training;{among}"
    )
    return [
        View(
            "scores over seeds",
            [column.heading for column in columns],
            [(Status.OK, [cell(row, column) for column in columns]) for row in found],
            [note],
            [column.kind != "text" for column in columns],
            [[row.get(column.key) for column in columns] for row in found],
        )
    ]
