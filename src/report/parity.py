"""Hold the first losses of runs against those of the plain `single`: the column of parity."""

from __future__ import annotations

from collections.abc import Sequence

from src.config.schema import SYNCHRONOUS
from src.measure.arithmetic import parity_gap, parity_holds
from src.report import comparison
from src.report.runs import MEASURED, Row, StudyRun


def parity(run: StudyRun, runs: Sequence[StudyRun]) -> Row:
    """Return a run's `parity`, the word for it, with what it stands on.

    `parity_gap` is the largest gap to any run of the reference, `rounding_gap` what one last digit in each
    weight does to the reference itself, `parity_reference` the cells of that.
    """
    if run.status not in MEASURED:
        return {}
    if comparison.is_plain(run):
        return {"parity": "reference", "rounding_gap": run.get("rounding_gap")}
    if run.get("strategy.synchronous") is False or run.get("strategy.parity") not in (None, SYNCHRONOUS):
        return {"parity": run.get("strategy.parity")}
    if run.get("precision") not in (None, "fp32"):
        return {"parity": f"not compared: {run.get('precision')}"}
    local = _local_statistics(run)
    # The local statistics of N workers with m micro-batches each are those of one device with N * m.
    microbatches = (run.get("microbatches") or 1) * ((run.get("workers") or 1) if local else 1)
    bases = comparison.parity_reference(run, runs, microbatches)
    gaps = [gap for base in bases if (gap := parity_gap(run.losses, base.losses)) is not None]
    if not gaps:
        return {"parity": "local statistics" if local else "no reference"}
    known = [gap for base in bases if (gap := base.get("rounding_gap")) is not None]
    row = {
        "parity_gap": max(gaps),
        "rounding_gap": max(known, default=None),
        "parity_reference": " ".join(base.cell for base in bases),
    }
    return row | {"parity": _word(row, _random(run))}


def _word(row: Row, random: str | None) -> str:
    holds = parity_holds(row["parity_gap"], row["rounding_gap"])
    if holds is None:
        return "unstable"
    if holds:
        return "holds"
    return "BROKEN" if random is None else f"not compared: {random}"


def _random(run: StudyRun) -> str | None:
    """Return what a run's model draws at random in training, by which its losses may differ; else `None`."""
    return "dropout" if run.get("model.dropout") else run.get("model.draws")


def worst(rows: Sequence[Row]) -> Row:
    """Return the columns of parity of the repetition with the largest gap, or of the first without one."""
    known = [row for row in rows if row.get("parity_gap") is not None]
    chosen = max(known, key=lambda row: row["parity_gap"]) if known else rows[0]
    return {key: chosen.get(key) for key in ("parity", "parity_gap", "rounding_gap", "parity_reference")}


def _local_statistics(run: StudyRun) -> bool:
    """Return whether the model normalises by statistics of each worker's own share of the batch."""
    shared = run.get("strategy.supports.shares_batch") and (run.get("workers") or 1) > 1
    return bool(shared and run.environment.get("batch_statistics") and run.get("batchnorm") == "local")
