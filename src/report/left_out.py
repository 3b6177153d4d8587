"""List what disturbed a study's runs, what ended early, and what its comparisons leave out."""

from __future__ import annotations

from collections.abc import Sequence

from src.measure.arithmetic import DISTURBED
from src.report.runs import Row
from src.report.views import listed
from src.run.status import MEASURED, Status

ENDED = {
    Status.TIME_LIMIT: "Stopped by max_minutes: fewer samples than a run that finished",
    Status.DIVERGED: "Diverged: a loss was no number",
    Status.OUT_OF_MEMORY: "Out of memory",
    Status.FAILED: "Failed, or one repetition did: left out of all ratios",
    Status.MISSING: "Missing",
}


def left_out(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Return each reason with the configurations that it concerns, of the rows of all configurations."""
    found: dict[str, list[str]] = {}
    for row in rows:
        for reason, detail in _reasons(row):
            name = f"{row['label']}, {row.get('workers')} w, batch {row.get('batch')}"
            found.setdefault(reason, []).append(name + (f" ({detail})" if detail else ""))
    return [(reason, listed(names)) for reason, names in found.items()]


def _reasons(row: Row) -> list[tuple[str, str]]:
    """Return why a configuration is marked or left out, each with a detail or nothing."""
    reasons: list[tuple[str, str]] = []
    status = row["status"]
    if status == Status.SKIPPED:
        reasons.append((f"Skipped on this machine: {row['run'].error}", ""))
    elif status in ENDED:
        reasons.append((ENDED[Status(status)], ""))
    if row.get("disturbed"):
        shares = [row.get("cpu_wait_fraction") or 0.0, row.get("steal_fraction") or 0.0]
        what = f"Disturbed: other processes or the host took more than {DISTURBED:.0%} of a run's time"
        reasons.append((what, f"median {max(shares):.0%}"))
    if row.get("probe_flag"):
        reasons.append(("The machine's speed differed from that under the baseline (probe)", ""))
    if row.get("shared_device"):
        reasons.append(("Workers shared a device: no ratios", ""))
    if row.get("bound") == "input":
        reasons.append(("Bound by input: says what the input delivers", ""))
    if status in MEASURED and row.get("samples_per_second") is None:
        reasons.append(("Too few timed steps for a throughput", ""))
    if row.get("baseline_note") and not row.get("baseline"):
        reasons.append((f"No speed-up: {row['baseline_note']}", ""))
    return reasons
