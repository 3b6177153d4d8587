"""Read what the ranks of an audited run wrote, and find where two runs begin to differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from src.run import files
from src.run.tables import read_mapping, read_table

# Kinds of what is compared, in the order in which a step has them, as they are called in a sentence.
KINDS = {"weights": "weight", "buffers": "buffer", "loss": "loss", "gradients": "gradient"}
# A tensor is compared with its own norm, or with this part of that of all tensors of its kind together: what
# is zero but for rounding has no norm to speak of.
FLOOR = 1e-5

# Weights of whose gradients rounding is all that is left, by this part of the norm of all, are left alone: an
# optimizer that divides by their size makes them anything.
NO_GRADIENT = 1e-9

Tensors = dict[str, np.ndarray]


@dataclass(frozen=True)
class Record:
    """A record of what the ranks of one run did.

    Attributes:
        losses: the loss of each step, from 1, of all ranks together.
        steps: by rank and step, sketches by kind and name (`weights/conv.weight`); may be empty.
        facts: what rank 0 found of the model.
        rounding_gap: what rounding alone does to the losses; `None` where that isn't known.
    """

    losses: Mapping[int, float]
    steps: Mapping[int, Mapping[int, Tensors]]
    facts: Mapping[str, Any]
    rounding_gap: float | None


@dataclass(frozen=True)
class Gap:
    """The largest difference of one kind in one step.

    Attributes:
        step: the step, from 1.
        kind: one of `KINDS`.
        name: of the tensor, empty of a loss.
        size: the difference, relative as `Gap.between` has it.
        rank: whose tensor it is.
        count: how many tensors of this kind differ by more than the bound.
        among: of how many.
    """

    step: int
    kind: str
    name: str
    size: float
    rank: int = 0
    count: int = 1
    among: int = 1

    def __str__(self) -> str:
        """Return the gap in words."""
        if self.kind == "loss":
            return f"the loss of step {self.step}, by {self.size:.1e}"
        of = f" of rank {self.rank}" if self.rank else ""
        others = f", the most of {self.count} of {self.among}" if self.count > 1 else ""
        before = "before" if self.kind in ("weights", "buffers") else "in"
        return f"{KINDS[self.kind]} {self.name}{of} {before} step {self.step}, by {self.size:.1e}{others}"


def read(out: Path, *, shares_batch: bool) -> Record:
    """Read a run in the directory `out`, whose ranks share each batch if `shares_batch` says so."""
    ranks = sorted(files.of_every_rank(out, files.STEPS))
    tables = [read_table(files.rank_folder(out, rank) / files.STEPS) for rank in ranks]
    losses = {}
    for rows in zip(*tables, strict=False):
        weights = [row["samples"] if shares_batch else 1 for row in rows]
        known = [math.nan if row["loss"] is None else row["loss"] for row in rows]
        losses[int(rows[0]["step"])] = float(np.average(known, weights=weights))
    folder = files.rank_folder(out, 0)
    record = read_mapping(folder / files.RECORD)
    return Record(
        losses,
        {rank: dict(_steps(files.rank_folder(out, rank), losses)) for rank in ranks},
        {**record, **read_mapping(folder / files.AUDITED)},
        record.get("rounding_gap"),
    )


def _steps(folder: Path, steps: Iterable[int]) -> Iterator[tuple[int, Tensors]]:
    for step in steps:
        path = folder / files.AUDITED_STEP.format(step=step)
        if path.exists():
            with np.load(path) as saved:
                yield step, dict(saved)


def summed(record: Record) -> Record:
    """Return a record whose gradients are those of all ranks together, where each had its part of them."""

    def add(parts: Sequence[Tensors]) -> Tensors:
        tensors = dict(parts[0])
        for more in parts[1:]:
            gradients = {name: value for name, value in more.items() if name.startswith("gradients/")}
            tensors |= {name: tensors.get(name, 0.0) + value for name, value in gradients.items()}
        return tensors

    return _as_one(record, add)


def without_gradients(record: Record) -> Record:
    """Return a record without gradients, which are then not compared."""
    steps = {
        rank: {
            step: {key: value for key, value in tensors.items() if not key.startswith("gradients/")}
            for step, tensors in of_rank.items()
        }
        for rank, of_rank in record.steps.items()
    }
    return replace(record, steps=steps)


def joined(record: Record, copy: Callable[[int], int]) -> Record:
    """Return a record of whole models, of whose stages each rank had one; `copy` says of which copy."""
    copies: dict[int, dict[int, Tensors]] = {}
    for rank, steps in sorted(record.steps.items()):
        whole = copies.setdefault(copy(rank), {})
        for step, tensors in steps.items():
            whole[step] = {**whole.get(step, {}), **tensors}
    return Record(record.losses, copies, record.facts, record.rounding_gap)


def _as_one(record: Record, unite: Callable[[Sequence[Tensors]], Tensors]) -> Record:
    """Return a record of one rank, whose tensors in a step are united of those of all ranks."""
    known = [steps for _, steps in sorted(record.steps.items())]
    united = {step: unite([steps[step] for steps in known if step in steps]) for step in known[0]}
    return Record(record.losses, {0: united}, record.facts, record.rounding_gap)


def gaps(run: Record, reference: Record) -> Iterator[Gap]:
    """Yield the largest gap of each kind in each step, in the order in which they come about.

    Every rank's tensors are compared with those of the same rank of the reference, or of its only one.
    """
    idle = _without_gradient(run) & _without_gradient(reference)
    for step in sorted({*run.losses, *reference.losses}):
        for kind in KINDS:
            if kind == "loss":
                loss, known = (each.losses.get(step, math.nan) for each in (run, reference))
                yield Gap(step, kind, "", _relative(abs(loss - known), max(1.0, abs(known))))
            elif sizes := _sizes(run, reference, step, kind, idle):
                (name, rank), size = max(sizes.items(), key=lambda item: item[1])
                yield Gap(step, kind, name, size, rank, among=len({each for each, _ in sizes}))


def first_gap(run: Record, reference: Record, bound: float) -> Gap | None:
    """Return the first gap above `bound`, and how many tensors are beyond it there; `None` without one."""
    first = next((gap for gap in gaps(run, reference) if not gap.size <= bound), None)
    if first is None or first.kind == "loss":
        return first
    idle = _without_gradient(run) & _without_gradient(reference)
    sizes = _sizes(run, reference, first.step, first.kind, idle)
    return replace(first, count=len({name for (name, _), size in sizes.items() if not size <= bound}))


def _without_gradient(record: Record) -> set[str]:
    """Return the names of weights that had gradients in some step, and none that is more than rounding."""
    largest: dict[str, float] = {}
    for steps in record.steps.values():
        for tensors in steps.values():
            norms = {key: norm(each) for key, each in tensors.items() if key.startswith("gradients/")}
            together = math.hypot(*norms.values())
            for key, size in norms.items():
                name, part = key.partition("/")[2], size / together if together else 0.0
                largest[name] = max(largest.get(name, 0.0), part)
    return {name for name, part in largest.items() if part <= NO_GRADIENT}


def norm(difference: np.ndarray) -> float:
    """Return the norm of the tensor that a sketch is of, or of what a difference of sketches is of."""
    return float(np.linalg.norm(difference[:-1])) or abs(float(difference[-1]))


def _sizes(
    run: Record, reference: Record, step: int, kind: str, idle: set[str]
) -> dict[tuple[str, int], float]:
    """Return the gap of each tensor of a kind in a step, by its name and its rank, but of `idle` weights."""
    found: dict[tuple[str, int], float] = {}
    for rank, steps in run.steps.items():
        expected = reference.steps.get(rank, reference.steps.get(0, {}))
        if step in steps and step in expected:
            sizes = _tensor_gaps(steps[step], expected[step], kind)
            left_out = idle if kind == "weights" else set()
            found |= {(name, rank): size for name, size in sizes.items() if name not in left_out}
    return found


def _tensor_gaps(run: Tensors, reference: Tensors, kind: str) -> dict[str, float]:
    """Return the relative difference of each tensor of a kind; one that the other lacks counts as zero.

    There are none where the run has no tensor of that kind.
    """
    own, known = ({k: v for k, v in each.items() if k.startswith(f"{kind}/")} for each in (run, reference))
    together = math.hypot(*(norm(value) for value in known.values()))
    sizes = {}
    for key in {**known, **own} if own else ():
        there = known.get(key, own.get(key))
        assert there is not None
        one, other = (each.get(key, np.zeros_like(there)) for each in (own, known))
        scale = max(norm(there), FLOOR * together)
        sizes[key.partition("/")[2]] = _relative(norm(one - other), scale)
    return sizes


def _relative(difference: float, scale: float) -> float:
    """Return a difference over its scale; infinity for one that is no number, or without a scale."""
    if difference == 0:
        return 0.0
    return difference / scale if math.isfinite(difference) and scale else math.inf


def largest(run: Record, reference: Record) -> dict[str, float]:
    """Return the largest gap of each kind over all steps."""
    found: dict[str, float] = {}
    for gap in gaps(run, reference):
        found[gap.kind] = max(found.get(gap.kind, 0.0), gap.size)
    return found
