"""Compute what a study's links asked for, gave and carried, and hold the steps against what that explains.

    expected step = computing + what the busiest link carries / its measured rate + round trips

Computing is what one device alone takes for a worker's part of the batch: a run of the plain `single` of
that batch in the same study. Round trips, and whether a link carries both ways at once, are what the
strategy's file says of its protocol (`exchange`). What the sum leaves of a step has other causes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from src.measure.arithmetic import fraction
from src.report import comparison
from src.report.runs import Row, StudyRun
from src.run import files

NETWORK = (
    "cell", "status", "framework", "strategy", "model", "dataset", "data_source", "hardware",
    "workers", "batch", "link_rate_asked_mbit", "link_rate_mbit", "link_round_trip_asked_ms",
    "link_round_trip_ms", "link_flag", "batch_seconds", "payload_batch_bytes",
    "network_batch_bytes", "compute_seconds", "wire_batch_seconds", "round_trips", "expected_seconds",
    "expected_ratio", "compute_share", "link_utilization", "router_fraction", "repetitions", "runs",
)  # fmt: skip
# A link whose rate or round trip differs by more from what was asked is marked.
DEVIATION, DEVIATION_MS = 0.1, 0.5


def network(runs: Sequence[StudyRun]) -> list[Row]:
    """Return what crossed the links of each run, with the columns `NETWORK`; empty of one without links."""
    return [_row(run, runs) for run in runs]


def _row(run: StudyRun, runs: Sequence[StudyRun]) -> Row:
    row: Row = {key: run.get(key) for key in NETWORK}
    batches = run.get("batches")
    step = fraction(run.global_batch, run.get("samples_per_second"))
    if step is None and run.get("strategy.synchronous"):
        # Too few steps for a rate. An asynchronous worker's median step is no batch's: it may not exchange.
        step = run.get("step_seconds_median")
    row["batch_seconds"] = step
    row["payload_batch_bytes"] = fraction(run.get("payload_bytes"), batches)
    row["network_batch_bytes"] = fraction(run.get("network_bytes"), batches)
    if run.get("link_round_trip_ms") is None:
        return row
    both = run.get("strategy.exchange.both_ways") is not False
    row["wire_batch_seconds"] = fraction(run.get("wire_seconds" if both else "wire_seconds_in_turn"), batches)
    row["round_trips"] = run.get("strategy.exchange.round_trips")
    row["compute_seconds"] = _computing(run, runs)
    row["compute_share"] = fraction(row["compute_seconds"], step)
    row["link_flag"] = _any_deviates(run)
    parts = [row["compute_seconds"], row["wire_batch_seconds"], row["round_trips"]]
    if None not in parts:
        row["expected_seconds"] = parts[0] + parts[1] + parts[2] * run.get("link_round_trip_ms") / 1e3
        row["expected_ratio"] = fraction(step, row["expected_seconds"])
    # The busier direction counts: a link that carries in turn, as much each way, is full at a half.
    row["link_utilization"] = fraction(fraction(run.get("wire_seconds"), batches), step)
    return row


def _computing(run: StudyRun, runs: Sequence[StudyRun]) -> float | None:
    """Return the seconds of a step of one device alone with a worker's part of a run's batch."""
    if run.sharers != (run.get("workers") or 1) or run.global_batch is None:
        return None
    part = run.global_batch // run.sharers
    alone = [
        base
        for base in runs
        if base.comparable
        and comparison.is_plain(base)
        and base.get("framework") == run.get("framework")
        and base.get("batch") == part
        and base.get("step_seconds_median") is not None
        and comparison.same_work_but_batch(base, run)
        and comparison.same_devices(base, run)
        and comparison.same_software(base, run)
    ]
    seconds = [base.get("step_seconds_median") for base in alone]
    return sum(seconds) / len(seconds) if seconds else None


def deviates(asked: Mapping[str, Any], measured: Mapping[str, Any]) -> bool:
    """Return whether a way between two hosts gave another rate or round trip than was asked of it.

    Both have `rate_mbit`, which asked is `None` for no limit, and `round_trip_ms`.
    """
    rate, trip = asked["rate_mbit"], asked["round_trip_ms"]
    odd = rate is not None and abs(measured["rate_mbit"] - rate) > DEVIATION * rate
    return bool(odd or abs(measured["round_trip_ms"] - trip) > max(DEVIATION * trip, DEVIATION_MS))


def _any_deviates(run: StudyRun) -> bool | None:
    """Return whether any of a run's links is not as asked, `None` without its `network.json`."""
    try:
        ways = json.loads((run.directory / files.NETWORK).read_text())["links"]
        return any(deviates(way["asked"], way["measured"]) for way in ways)
    except (OSError, ValueError, KeyError, TypeError):
        return None
