"""Merge the ranks' records into the run's results: steps.csv, epochs.csv, metrics.json, environment.json."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from src.config import Config
from src.measure import all_ranks, arithmetic, contention, exchanges, timeline
from src.measure.contention import Reading
from src.measure.metrics import RunRecords, largest, metrics_of
from src.run import files
from src.run.status import Status
from src.run.tables import (
    EXCHANGE_FIELDS,
    STEP_FIELDS,
    WORKER_FIELDS,
    Row,
    read_table,
    write_table,
    write_text,
)

# Facts of rank 0 that stand in environment.json.
FIRST_RANK_FACTS = (
    "peak_flops", "peak_source", "peak_device", "peak_precision", "peak_measured_flops",
    "peak_official_flops", "batch_statistics", "draws_random_numbers", "moves_buffers", "computes_over_batch",
    "mean_rank_train_seconds", "rounding_losses",
)  # fmt: skip


def merge(
    config: Config,
    out: Path,
    *,
    status: Status,
    total_seconds: float,
    trace: list[Row],
    helper_seconds: Sequence[tuple[float, float]] = (),
    readings: Sequence[Reading] = (),
    environment: dict[str, Any],
    restarts: int = 0,
    run_id: str | None,
    keep: bool = False,
) -> dict[str, Any]:
    """Write the result files of the run directory `out` from its `ranks/`, and return the metrics.

    `ranks/` is removed, unless the run may go on. Everything that a failed run recorded is merged, too.

    Arguments that are not described here are those of `RunRecords` and `metrics_of`.

    Args:
        out: the run directory.
        status: how the parent saw the run end; a rank's `time_limit` or `diverged` takes the place of `ok`.
        environment: the parent's description of the machine.
        keep: whether the run may go on.
    """

    def of_ranks(name: str) -> dict[int, Any]:
        return {rank: json.loads(path.read_text()) for rank, path in files.of_every_rank(out, name).items()}

    run = RunRecords(
        config,
        steps={rank: read_table(path) for rank, path in files.of_every_rank(out, files.STEPS).items()},
        records=of_ranks(files.RECORD),
        epochs=read_table(files.rank_folder(out, 0) / files.EPOCHS),
        timelines=of_ranks(files.TIMELINE),
        live_tensors=of_ranks(files.LIVE_TENSORS),
        trace=trace,
        helper_seconds=helper_seconds,
        readings=readings,
    )
    if status == Status.OK:
        ends = (Status(record["status"]) for record in run.records.values())
        status = next((each for each in ends if each is not Status.OK), Status.OK)
    _write_steps(out / files.STEPS, run)
    epochs = files.rank_folder(out, 0) / files.EPOCHS
    if epochs.exists():
        shutil.copyfile(epochs, out / files.EPOCHS)
    write_table(out / files.WORKERS, WORKER_FIELDS, _worker_rows(run))
    if exchanged := exchanges.rows(run.records):
        write_table(out / files.EXCHANGES, EXCHANGE_FIELDS, exchanged)
    seconds = environment.get("seconds", {})
    seen = (environment.get("inspection") or {}).get("facts") or {}
    environment |= _facts_of_environment(run, seen) | {"seconds": _by_part(run, seconds)}
    write_text(out / files.ENVIRONMENT, json.dumps(environment, indent=1))
    if run.timelines:
        write_text(out / files.TIMELINE, json.dumps(timeline.chrome_trace(run.timelines)))
    if run.live_tensors:
        write_text(out / files.LIVE_TENSORS, json.dumps(run.live_tensors))
    run = replace(run, network=_complete_network(out / files.NETWORK, run))
    metrics = metrics_of(run, status=status, total_seconds=total_seconds, restarts=restarts, run_id=run_id)
    write_text(out / files.METRICS, json.dumps(metrics, indent=1))
    if config.profiler:
        all_ranks.write(out, run.steps, environment.get("hosts", ()))
    if not keep:
        shutil.rmtree(out / files.RANKS)
    return metrics


def _complete_network(path: Path, run: RunRecords) -> dict[str, Any]:
    """Add what crossed the links to the network's description at `path`, if there is one, and return it."""
    network: dict[str, Any] = {}
    if path.exists():
        network = json.loads(path.read_text())
        network["traffic"] = {
            host: {"sent_bytes": sent, "received_bytes": received}
            for host, (sent, received) in run.first.get("traffic", {}).items()
        }
        write_text(path, json.dumps(network, indent=1))
    return network


def _facts_of_environment(run: RunRecords, seen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ranks' measurements of the machine, and facts of their model, or those `seen` before."""
    records, first = run.records, run.first
    before = [record.get("probe_before") for record in records.values()]
    after = [record.get("probe_after") for record in records.values()]
    found = contention.disturbances(run.readings, records)
    return {
        **{key: first.get(key, seen.get(key)) for key in FIRST_RANK_FACTS},
        "probes": {"before": before, "after": after},
        "probe_changed": arithmetic.probe_changed(list(zip(before, after, strict=True))),
        "contention": contention.facts(found, run.readings, records),
    }


def _by_part(run: RunRecords, before: dict[str, float]) -> dict[str, float]:
    """Return the seconds of each part of the run, of the slowest rank or of rank 0.

    `before` has those until the ranks were started (`parent`), and until all were started again (`lost`).
    """
    imported = largest(record.get("import_seconds") for record in run.records.values())
    started = largest(record.get("startup_seconds") for record in run.records.values())
    if imported is None or started is None:
        return before
    steps = [row["seconds"] for row in run.steps.get(0, [])]
    rounding = run.first.get("rounding_seconds")
    parts = {
        "imports": imported - before.get("parent", 0.0),
        "setup": started - imported,
        "first_step": sum(steps[:1]),
        "further_steps": sum(steps[1:]),
        "evaluation": sum(end - start for start, end in run.first.get("off_clock", [])),
    }
    return before | parts | ({} if rounding is None else {"rounding": rounding})


def _write_steps(path: Path, run: RunRecords) -> None:
    """Write all ranks' steps; the loss of a synchronous strategy is the mean over the global batch."""
    losses = global_losses(run.steps) if run.config.synchronous else {}
    rows = [
        {
            **row,
            **{key: int(row[key]) for key in ("epoch", "step", "samples")},
            "rank": rank,
            "loss": losses.get(row["step"], row["loss"]),
        }
        for rank, own in run.steps.items()
        for row in own
    ]
    write_table(path, ("rank", *STEP_FIELDS), rows)


def global_losses(steps: Mapping[int, Sequence[Row]]) -> dict[float, float]:
    """Return the mean loss by step, weighted by samples, of the steps that every rank has completed."""
    parts: dict[float, list[tuple[float, float]]] = defaultdict(list)
    for rows in steps.values():
        for row in rows:
            if row["loss"] is not None:
                parts[row["step"]].append((row["loss"], row["samples"]))
    return {
        step: sum(loss * samples for loss, samples in own) / sum(samples for _, samples in own)
        for step, own in parts.items()
        if len(own) == len(steps)
    }


def _worker_rows(run: RunRecords) -> list[Row]:
    """Return each worker's totals over the timed window: the rows of `workers.csv`."""
    rows = []
    for rank, every in run.steps.items():
        timed, record = every[run.config.warmup_steps :], run.records.get(rank, {})
        staleness = [row["staleness"] for row in timed if row["staleness"] is not None]
        rows.append(
            {
                "rank": rank,
                "steps": len(timed),
                "samples": round(sum(row["samples"] for row in timed)),
                "seconds": sum(row["seconds"] for row in timed),
                "busy_seconds": record.get("busy_seconds"),
                # Asynchronous workers record their exchanges alone: not all of their waits are known.
                "exchange_seconds": record.get("exchange_seconds", record.get("communication_seconds")),
                "fetched_bytes": record.get("fetched_bytes"),
                "pushed_bytes": record.get("pushed_bytes"),
                "staleness_mean": arithmetic.mean(staleness),
                "staleness_max": largest(staleness),
            }
        )
    return rows
