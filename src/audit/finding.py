"""Define what an audit finds of one strategy, and put it into words."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from src.audit.causes import Cause
from src.audit.records import KINDS, Gap

SAME, DIFFERENT = 0, 3


@dataclass
class Finding:
    """A finding of one strategy.

    Attributes:
        name: the strategy and its workers, as in tables.
        by_design: why its losses can't be those of one device, empty where they should be.
        against: what it was held against.
        precision: the run's own precision.
        gaps: the largest gap of each kind over all steps, by precision (`fp64`, `own`).
        first: the first gap beyond the bound, and the largest ones of its step.
        same: whether the runs are the same, by precision.
        rounding_gap: what rounding alone does to the losses in the run's own precision.
        causes: what was confirmed as the cause; all of them together where no one alone is it.
        tested: what was changed to test a cause, and whether the gap went.
        notes: what else should be known, a sentence each.
    """

    name: str
    against: str
    precision: str
    by_design: str = ""
    gaps: dict[str, dict[str, float]] = field(default_factory=dict)
    first: list[Gap] = field(default_factory=list)
    same: dict[str, bool | None] = field(default_factory=dict)
    rounding_gap: float | None = None
    causes: list[Cause] = field(default_factory=list)
    tested: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_same(self) -> bool:
        """Return whether the audited run computes the same as what it was held against."""
        sharp = self.same.get("fp64")
        return bool(self.same.get("own")) if sharp is None else sharp and self.same.get("own") is not False

    @property
    def status(self) -> int:
        """Return the exit status that this finding asks for."""
        return SAME if self.is_same else DIFFERENT

    def sentences(self) -> list[str]:
        """Return what was found, a sentence each: same or not, where it begins, why, and what to do."""
        said = []
        if self.by_design:
            said.append(f"{self.name} differs from one device by design ({self.by_design}).")
        if self.is_same:
            said.append(f"{self.name} computes the same as {self.against}, to {self._precisions()}.")
        else:
            said.append(f"{self.name} does not compute the same as {self.against}.")
            if self.first:
                said.append(f"The first difference is {' and '.join(map(str, self.first))}.")
            said += self._why()
        return [*said, *self.notes]

    def _why(self) -> list[str]:
        if not self.causes:
            tried = "; ".join(str(test["change"]) for test in self.tested if "failed" not in test)
            if not tried:
                return []
            return [f"None of the changes tested explains it ({tried}): look at the strategy itself."]
        titles = ", together with ".join(cause.title for cause in self.causes)
        changes = " and ".join(cause.change for cause in self.causes)
        advice = "; ".join(cause.advice for cause in self.causes)
        return [
            f"The cause is {titles}: with {changes}, and nothing else changed, the difference goes.",
            f"What to do: {advice}.",
        ]

    def _precisions(self) -> str:
        """Return how far tensors and losses are apart in float64, and losses in the run's own precision."""
        said = []
        if (sharp := self.gaps.get("fp64")) is not None:
            said.append(f"{max(sharp.values()):.1e} in float64")
        if (loss := self.gaps.get("own", {}).get("loss")) is not None:
            said.append(f"{loss:.1e} of its losses in {self.precision}")
        return " and ".join(said)

    def row(self) -> list[str]:
        """Return the finding as a row of the table: name, gaps, verdict, cause."""
        cells = [self.name]
        for precision in ("fp64", "own"):
            for kind in KINDS if precision == "fp64" else ("loss",):
                gap = self.gaps.get(precision, {}).get(kind)
                cells.append("-" if gap is None else f"{gap:.1e}")
        cells.append("-" if self.rounding_gap is None else f"{self.rounding_gap:.1e}")
        cells.append("the same" if self.is_same else "different")
        cells.append(", ".join(cause.name for cause in self.causes) or "-")
        return cells

    def as_json(self) -> dict[str, Any]:
        """Return the finding for audit.json."""
        return _finite(self._as_json())

    def _as_json(self) -> dict[str, Any]:
        return {
            "strategy": self.name,
            "against": self.against,
            "by_design": self.by_design or None,
            "precision": self.precision,
            "same": self.is_same,
            "same_by_precision": self.same,
            "largest_gaps": self.gaps,
            "first_difference": [vars(gap) | {"kind": KINDS[gap.kind]} for gap in self.first],
            "rounding_gap": self.rounding_gap,
            "causes": [
                {"name": each.name, "cause": each.title, "confirmed_by": each.change, "advice": each.advice}
                for each in self.causes
            ],
            "tested": self.tested,
            "sentences": self.sentences(),
        }


def _finite(value: Any) -> Any:
    """Return a value for JSON, which has no infinity: `None` takes its place."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
