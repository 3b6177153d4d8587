"""Work out model FLOPs utilisation over one peak for all runs of a study on like devices.

A kept peak rises when a run measures a faster product, so that two runs of a study may have divided by
different numbers (`src/measure/peak.py`). Here the largest one counts for both.
"""

from __future__ import annotations

from collections.abc import Sequence

from src.measure import arithmetic
from src.report.runs import StudyRun


def model_flops_utilization(run: StudyRun, runs: Sequence[StudyRun]) -> float | None:
    """Return a run's model FLOPs utilisation over the largest peak of its device and precision in `runs`.

    A run that doesn't say what its peak is of keeps the figure of its own.
    """
    kind = _kind(run)
    peaks = [
        other.environment.get("peak_flops") for other in runs if kind is not None and _kind(other) == kind
    ]
    known = [float(peak) for peak in peaks if isinstance(peak, int | float)]
    if not known:
        return run.get("model_flops_utilization")
    return arithmetic.model_flops_utilization(
        run.get("flops_per_sample"), run.get("samples_per_second"), run.get("workers") or 1, max(known)
    )


def _kind(run: StudyRun) -> tuple[str, str] | None:
    device, precision = (run.environment.get(key) for key in ("peak_device", "peak_precision"))
    return None if device is None or precision is None else (device, precision)
