"""Gather a study's runs into questions: configurations of which one may be chosen, for they compare."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import mean, median
from typing import Any

from src.config.keys import key_of
from src.config.schema import flatten
from src.report import comparison
from src.report.repeats import Rates
from src.report.runs import Row, StudyRun
from src.report.verdict.objective import ACCURACY, Aim, Objective
from src.report.verdict.prices import add_costs
from src.run.status import MEASURED, Status

FRAMEWORKS = {"torch": "PyTorch", "tensorflow": "TensorFlow"}


@dataclass(frozen=True)
class Candidate:
    """A configuration that may be chosen, with all its runs: of any seed, and all repetitions.

    Attributes:
        rows: the merged row of each run, whatever its status.
    """

    rows: tuple[Row, ...]

    @property
    def first(self) -> Row:
        """Return the row of the first run that was measured, or of the first one."""
        return (self.measured or self.rows)[0]

    @cached_property
    def measured(self) -> tuple[Row, ...]:
        """Return the rows of the runs that were measured."""
        return tuple(row for row in self.rows if row["status"] in MEASURED)

    @property
    def run(self) -> StudyRun:
        """Return its first run."""
        return self.first["run"]

    @property
    def statuses(self) -> set[Status]:
        """Return how its runs have ended."""
        return {row["status"] for row in self.rows}

    @property
    def devices(self) -> int:
        """Return the number of devices on which it trains."""
        return self.first.get("workers") or 1

    @property
    def alone(self) -> bool:
        """Return whether it trains on one device, by a strategy for one device."""
        return comparison.is_single(self.run) and self.devices == 1

    @property
    def of_capacity(self) -> bool:
        """Return whether it measures what devices give together, and trains no model."""
        return not self.run.trains

    @property
    def learns_alike(self) -> bool:
        """Return whether it learns as one device does, from the same batches, as far as known."""
        own = self.devices > 1 and self.first.get("scaling") == "weak"
        return not own and not self.run.learns_otherwise

    @property
    def cells(self) -> tuple[str, ...]:
        """Return the cells of its runs."""
        return tuple(row["cell"] for row in self.rows)

    def known(self, key: str) -> list[Any]:
        """Return a column's values over the measured runs, without those that are not known, or no number."""
        values = [row[key] for row in self.measured if row.get(key) is not None]
        return [value for value in values if not (isinstance(value, float) and math.isnan(value))]

    def middle(self, key: str) -> float | None:
        """Return the median of a column over the measured runs."""
        values = self.known(key)
        return median(values) if values else None

    def figures(self, aim: Aim) -> Rates:
        """Return the aim's figure by block: seed and repetition, or for the accuracy the seed alone.

        Repetitions of one seed learn the same: they say nothing of how far accuracies scatter.
        """
        values: dict[Any, list[float]] = {}
        for row in self.measured:
            value = row.get(aim.metric)
            # The logarithm is taken of times, rates and amounts.
            if value is not None and (value > 0 or (aim.name == ACCURACY and math.isfinite(value))):
                block = comparison.block(row["run"])
                values.setdefault(block[0] if aim.name == ACCURACY else block, []).append(value)
        return {block: mean(found) for block, found in values.items()}


@dataclass(frozen=True)
class Question:
    """Configurations of which one may be chosen, for their figures compare.

    Attributes:
        subject: what is trained: model, data, and what else tells it from the study's other subjects.
        batch: the batch that all have; `None` where configurations of several batches compare.
        candidates: the configurations.
        baselines: what a candidate's speed-up stands over, by its first cell.
        capacities: what devices give that train each for itself, which is no way to train.
    """

    subject: str
    batch: int | None
    candidates: tuple[Candidate, ...]
    baselines: Mapping[str, Candidate]
    capacities: tuple[Candidate, ...] = ()

    def directed(self, aim: Aim) -> Aim:
        """Return the aim as the question's task means it: where its score is an error, less is better."""
        higher = self.candidates[0].run.get("task.higher_is_better")
        return replace(aim, more=higher is not False) if aim.name == ACCURACY else aim

    def capacity(self, devices: int) -> Candidate | None:
        """Return what measured the capacity of so many devices; `None` where nothing did."""
        return next((each for each in self.capacities if each.devices == devices), None)

    def pool(self, aim: Aim) -> list[Rates]:
        """Return the figures of all configurations, whose noise is one."""
        return [figures for each in (*self.candidates, *self.capacities) if (figures := each.figures(aim))]

    def baseline(self, candidate: Candidate) -> Candidate | None:
        """Return the configuration on one device over which a candidate's speed-up stands."""
        return self.baselines.get(candidate.cells[0])


def questions(rows: Sequence[Row], objective: Objective) -> list[Question]:
    """Return the questions that a study's merged rows can answer, in the rows' order."""
    aim = objective.aim
    grounds: list[list[Row]] = []
    priced = add_costs([row for row in rows if row["run"].config], objective.prices)
    known = [
        {**row, "score": row.get("score", row.get("accuracy"))}
        for row in priced
        if not row.get("shared_device")
    ]
    # What was measured says on what it ran; a run that has failed may not.
    for row in sorted(known, key=lambda row: row["status"] not in MEASURED):
        _add_to_ground(grounds, row, aim)
    candidates = [_candidates(ground) for ground in grounds]
    every = {cell: each for group in candidates for each in group for cell in each.cells}
    asked = [group for group in candidates if not all(each.of_capacity for each in group)]
    subjects = _subjects([group[0].run for group in asked], aim)
    return [
        Question(
            subject,
            group[0].first.get("batch") if aim.at_batch else None,
            tuple(each for each in group if not each.of_capacity),
            {each.cells[0]: base for each in group if (base := _baseline(each, every))},
            tuple(each for each in group if each.of_capacity),
        )
        for subject, group in zip(subjects, asked, strict=True)
    ]


def _add_to_ground(grounds: list[list[Row]], row: Row, aim: Aim) -> None:
    """Add a row to the first group with whose runs it compares, or to a new one."""
    for ground in grounds:
        if _compares(ground[0], row, aim):
            ground.append(row)
            return
    grounds.append([row])


def _compares(one: Row, other: Row, aim: Aim) -> bool:
    """Return whether the figures of two rows may be held against each other (docs/metrics.md)."""
    first, second = one["run"], other["run"]
    work = comparison.same_work if aim.at_batch else comparison.same_work_but_batch
    keys = ["framework", "machine", *(["target_accuracy"] if aim.metric == "seconds_to_target" else [])]
    return (
        all(one.get(key) == other.get(key) for key in keys)
        and work(first, second)
        and (_same_ground(first, second) or _unknown(one) or _unknown(other))
        and (not aim.whole or comparison.same_asked(first, second))
    )


def _unknown(row: Row) -> bool:
    """Return whether a run has failed before it could say on what it ran."""
    return row["status"] not in MEASURED and not row["run"].environment


def _same_ground(one: StudyRun, other: StudyRun) -> bool:
    return comparison.same_software(one, other) and comparison.same_hardware(one, other)


def _candidates(ground: Sequence[Row]) -> list[Candidate]:
    members: dict[str, list[Row]] = {}
    for row in ground:
        members.setdefault(comparison.configuration(row["run"], seed=False), []).append(row)
    return [Candidate(tuple(alike)) for alike in members.values()]


def _baseline(candidate: Candidate, every: Mapping[str, Candidate]) -> Candidate | None:
    """Return what a candidate's speed-up stands over, as the tables have it."""
    cells = " ".join(candidate.known("baseline")).split()
    return every.get(cells[0]) if cells else None


def _subjects(firsts: Sequence[StudyRun], aim: Aim) -> list[str]:
    """Return what each group trains, in as few words as tell the groups apart."""
    known = [(_subject(run), _facts(run, aim)) for run in firsts]
    subjects = []
    for subject, facts in known:
        alike = [others for other, others in known if other == subject]
        keys = [key for key in facts if len({str(other.get(key)) for other in alike}) > 1]
        subjects.append(", ".join([subject, *(facts[key] for key in keys if facts.get(key))]))
    # Machines and versions have no short names.
    whole = [
        (name, run.get("batch") if aim.at_batch else None) for name, run in zip(subjects, firsts, strict=True)
    ]
    return [
        f"{name}, {whole[: place + 1].count(each)} of {count} machines or versions"
        if (count := whole.count(each)) > 1
        else name
        for place, (each, name) in enumerate(zip(whole, subjects, strict=True))
    ]


def _subject(run: StudyRun) -> str:
    source = run.get("data_source")
    made = f" ({source})" if source not in (None, "original") else ""
    return f"{run.get('model')} on {run.get('dataset')}{made}"


def _facts(run: StudyRun, aim: Aim) -> dict[str, str]:
    """Return words on what may tell a group from others of the same model and data, by key."""
    framework = str(run.get("framework"))
    extent = ["epochs"] if aim.whole else ["target_accuracy"] if aim.metric == "seconds_to_target" else []
    asked = {key: run.config.get(key) for key in ["precision", *extent]}
    options = {
        key: value
        for key, value in flatten(run.config).items()
        if key.startswith(("model.", "dataset.", "task.")) and key_of(key).labelled
    }
    return {
        "framework": FRAMEWORKS.get(framework, framework),
        "hardware": str(run.get("hardware")),
        "machine": str(run.get("machine")),
        **{
            key: "" if value is None else f"{key.split('.')[-1]} {value}"
            for key, value in {**asked, **options}.items()
        },
    }
