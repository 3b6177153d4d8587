"""Work out a run's figures, the content of `metrics.json`, from the records of its ranks."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from src.config import Config
from src.measure import arithmetic, contention, exchanges, live_bytes, network, timeline
from src.measure.contention import Reading
from src.measure.rank_record import RankRecord
from src.run.status import Status
from src.run.tables import Row

# Every key of metrics.json, in the order in which it is written (docs/metrics.md, "metrics.json").
KEYS = (
    "status", "framework", "strategy", "model", "dataset", "data_source", "hardware", "workers", "batch",
    "scaling", "microbatches", "seed", "epochs", "parameters", "train_seconds", "total_seconds",
    "startup_seconds", "seconds_per_epoch", "samples_per_second", "validation_samples_per_second",
    "step_seconds_median", "step_seconds_p25", "step_seconds_p75", "seconds_to_target", "steps_to_target",
    "loss", "accuracy", "train_accuracy", "utilization_mean", "utilization_max", "busy_fraction",
    "helper_cpu_seconds", "memory_mean_bytes", "memory_peak_bytes", "saved_tensors_bytes", "energy_joules",
    "power_mean_watts", "payload_bytes", "network_bytes", "input_wait_fraction", "cpu_wait_fraction",
    "steal_fraction", "flops_per_sample", "model_flops_utilization", "bubble_fraction", "staleness_mean",
    "clock_gap_max", "restarts", "shared_device", "mlflow_run_id", "rounding_gap",
    "task", "metric", "score", "train_loss", "batches", "timed_steps",
    "link_rate_asked_mbit", "link_rate_mbit", "link_round_trip_asked_ms", "link_round_trip_ms",
    "wire_seconds", "wire_seconds_in_turn", "router_fraction", "tokens_per_second", "state_bytes",
    "live_peak_bytes", "live_predicted_bytes",
    "data_exchange_bytes", "shard_exchange_bytes", "pipeline_exchange_bytes", "tensor_exchange_bytes",
)  # fmt: skip
# Figures that rank 0 has recorded for all.
FIRST_RANK = (
    "parameters", "validation_samples_per_second", "seconds_to_target", "steps_to_target",
    "flops_per_sample", "clock_gap_max", "rounding_gap",
)  # fmt: skip


@dataclass(frozen=True)
class RunRecords:
    """The records of a run: those of its ranks, by rank, and those of its parent.

    Attributes:
        config: the run's configuration.
        steps: rows of each rank's `steps.csv`.
        records: each rank's `record.json`, if it ended well.
        epochs: rows of rank 0's `epochs.csv`.
        timelines: intervals of each stage or worker (`src.measure.timeline`).
        trace: rows of `trace.csv`.
        helper_seconds: (time, CPU seconds that helpers had used until then).
        readings: counters of what the ranks waited for their cores.
        network: the description of emulated hosts (`network.json`), empty without them.
        live_tensors: each rank's `live_tensors.json`, where tensors were followed.
    """

    config: Config
    steps: Mapping[int, list[Row]]
    records: Mapping[int, RankRecord]
    epochs: list[Row]
    timelines: Mapping[int, list[list[Any]]] = field(default_factory=dict)
    trace: list[Row] = field(default_factory=list)
    helper_seconds: Sequence[tuple[float, float]] = ()
    readings: Sequence[Reading] = ()
    network: Mapping[str, Any] = field(default_factory=dict)
    live_tensors: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def first(self) -> RankRecord:
        """Return rank 0's record; empty if it left none."""
        return self.records.get(0, {})


def metrics_of(
    run: RunRecords, *, status: Status, total_seconds: float, restarts: int, run_id: str | None
) -> dict[str, Any]:
    """Return every figure of `KEYS`; `None` for those that were not measured, or are infinite or NaN.

    Args:
        run: the records.
        status: how the run ended.
        total_seconds: from the command to here.
        restarts: number of processes or jobs that were started again.
        run_id: of the MLflow run.
    """
    config, first = run.config, run.first
    # What was sent before the last start has been counted by no rank that is left.
    traffic = {} if restarts else first.get("traffic", {})
    known = {
        "status": status,
        "framework": config.framework,
        "strategy": config.strategy["name"],
        "model": config.model["name"],
        "dataset": config.dataset["name"],
        "data_source": config.dataset["source"],
        "hardware": config.hardware.name,
        "task": config.task["name"],
        "metric": config.task["metrics"][0],
        "total_seconds": total_seconds,
        "shared_device": config.hardware.share_devices,
        "restarts": restarts,
        "bubble_fraction": timeline.bubble_fraction(run.timelines, apart=not config.synchronous),
        "mlflow_run_id": run_id,
        **{key: getattr(config, key) for key in ("workers", "batch", "scaling", "microbatches", "seed")},
        **{key: first.get(key) for key in FIRST_RANK},
        **_timing(run),
        **_last_evaluation(run.epochs),
        **_resources(run),
        **network.facts(run.network, traffic),
        **live_bytes.facts(run.live_tensors),
        "network_bytes": total(sent for sent, _ in traffic.values()),
        **contention.fractions(contention.disturbances(run.readings, run.records)),
    }
    metrics = {key: known.get(key) for key in KEYS}
    metrics["model_flops_utilization"] = arithmetic.model_flops_utilization(
        metrics["flops_per_sample"], metrics["samples_per_second"], config.workers, first.get("peak_flops")
    )
    metrics["tokens_per_second"] = arithmetic.product(
        metrics["samples_per_second"], first.get("tokens_per_sample")
    )
    return {key: None if _is_no_number(value) else value for key, value in metrics.items()}


def _timing(run: RunRecords) -> dict[str, Any]:
    config = run.config
    timed = {rank: rows[config.warmup_steps :] for rank, rows in run.steps.items()}
    p25, middle, p75 = arithmetic.spread([row["seconds"] for row in timed.get(0, [])])
    train_seconds = [sum(row["seconds"] for row in rows) for rows in run.steps.values()]
    trained = max(train_seconds) if train_seconds else None
    per_epoch = run.first.get("steps_per_epoch")
    # Ranks that share the batch have seen it together; otherwise each rank has seen all of it.
    seen = config.degrees.viewers if config.supports.shares_batch else range(1)
    samples = sum(row["samples"] for rank in seen for row in run.steps.get(rank, []))
    epochs = samples / (per_epoch * config.global_batch) if per_epoch else None
    staleness = [row["staleness"] for rows in timed.values() for row in rows if row["staleness"] is not None]
    return {
        "epochs": None if epochs is None else round(epochs, 4),
        "batches": arithmetic.fraction(samples, config.global_batch),
        "timed_steps": max((len(rows) for rows in timed.values()), default=None),
        "train_seconds": trained,
        "seconds_per_epoch": arithmetic.fraction(trained, epochs),
        "samples_per_second": _rate(config, list(timed.values())),
        "step_seconds_p25": p25,
        "step_seconds_median": middle,
        "step_seconds_p75": p75,
        "startup_seconds": largest(record.get("startup_seconds") for record in run.records.values()),
        "staleness_mean": arithmetic.mean(staleness),
    }


def _rate(config: Config, ranks: Sequence[Sequence[Row]]) -> float | None:
    """Return the job's samples/s over the timed rows of its ranks."""
    worked = [([row["samples"] for row in rows], [row["seconds"] for row in rows]) for rows in ranks]
    if not config.synchronous and config.supports.shares_batch:
        return arithmetic.own_pace_rate(worked)
    rates = [arithmetic.samples_per_second(samples, seconds) for samples, seconds in worked]
    known = [rate for rate in rates if rate is not None]
    if not known or len(known) < len(rates):
        return None
    # Processes that hold all devices are one, however many workers divide the batch.
    return arithmetic.job_rate(known, len(known) // min(len(known), config.degrees.batch))


def _last_evaluation(epochs: Sequence[Row]) -> dict[str, Any]:
    if not epochs:
        return {}
    return {key: epochs[-1][key] for key in ("loss", "accuracy", "train_accuracy", "score", "train_loss")}


def _resources(run: RunRecords) -> dict[str, Any]:
    records, first = list(run.records.values()), run.first
    inside = [row for row in run.trace if _in_window(row["time"], run.records.get(int(row["rank"])))]
    used = [row["utilization"] for row in inside if row["utilization"] is not None]
    wall = total(record.get("window_seconds") for record in records)
    waited = total(record.get("input_seconds") for record in records)
    busy = total(record.get("busy_seconds") for record in records)
    power = arithmetic.mean(list(_watts_by_time(inside).values()))
    return {
        "utilization_mean": arithmetic.mean(used),
        "utilization_max": largest(used),
        "busy_fraction": arithmetic.fraction(busy, wall),
        "input_wait_fraction": arithmetic.fraction(waited, wall),
        "helper_cpu_seconds": _helpers(run.helper_seconds, records),
        # Memory is per device: these are the figures of the ranks with the largest mean and the largest peak.
        "memory_mean_bytes": largest(arithmetic.mean(values) for values in _memory_by_rank(run, inside)),
        "memory_peak_bytes": largest(record.get("memory_peak_bytes") for record in records),
        "saved_tensors_bytes": _saved_tensors(run),
        "state_bytes": largest(_state(record) for record in records),
        "power_mean_watts": power,
        "energy_joules": arithmetic.energy(power, first.get("window_seconds")),
        "payload_bytes": total(record.get("payload_bytes") for record in records),
        **{
            f"{axis}_exchange_bytes": size
            for axis, size in exchanges.largest_by_axis(exchanges.rows(run.records)).items()
        },
    }


def _state(record: RankRecord) -> int | None:
    """Return the bytes of weights, gradients and optimizer state that a rank holds, `None` if not counted."""
    parts = record.get("weights_bytes"), record.get("gradients_bytes"), record.get("optimizer_bytes")
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _saved_tensors(run: RunRecords) -> int | None:
    """Return the bytes of saved tensors on the device that holds the most of them, at that moment."""
    stages = [record.get("saved_tensors_bytes") for record in run.records.values()]
    if any(stages):
        return max(stage for stage in stages if stage is not None)
    per_sample = run.first.get("saved_tensor_bytes_per_sample")
    if per_sample is None:
        return None
    # Workers' shares of a batch may differ, and may have changed.
    samples = largest(row["samples"] for rows in run.steps.values() for row in rows)
    share = math.ceil((samples or run.config.worker_batch) / run.config.microbatches)
    microbatch = run.first.get("largest_microbatch", share)
    return round(run.first.get("saved_tensor_bytes_fixed", 0.0) + per_sample * microbatch)


def _watts_by_time(trace: Sequence[Row]) -> dict[float, float]:
    """Return the watts of all devices together, by the moment of the sample.

    Moments at which a device's power couldn't be read, though it could at others, are left out.
    """
    readable = {row["rank"] for row in trace if row["power_watts"] is not None}
    missed = {row["time"] for row in trace if row["power_watts"] is None and row["rank"] in readable}
    watts: dict[float, float] = defaultdict(float)
    for row in trace:
        if row["power_watts"] is not None and row["time"] not in missed:
            watts[row["time"]] += row["power_watts"]
    return watts


def _memory_by_rank(run: RunRecords, trace: Iterable[Row]) -> Iterable[list[float]]:
    """Return each rank's samples of memory, in bytes above its level after imports."""
    memory: dict[int, list[float]] = defaultdict(list)
    for row in trace:
        level = run.records[int(row["rank"])].get("memory_level_bytes")
        if level is not None and row["memory_bytes"] is not None:
            memory[int(row["rank"])].append(max(0, row["memory_bytes"] - level))
    return memory.values()


def _helpers(used: Sequence[tuple[float, float]], records: Iterable[RankRecord]) -> float | None:
    """Return the CPU seconds of servers and coordinators within the timed window, evaluations included."""
    windows = [record["window"] for record in records if "window" in record]
    if not windows:
        return None
    start, end = min(opened for opened, _ in windows), max(closed for _, closed in windows)
    inside = [seconds for moment, seconds in used if start <= moment <= end]
    return inside[-1] - inside[0] if inside else None


def _in_window(moment: float, record: RankRecord | None) -> bool:
    if not record or "window" not in record:
        return False
    start, end = record["window"]
    return start <= moment <= end and not any(a <= moment <= b for a, b in record["off_clock"])


def total(values: Iterable[float | None]) -> float | None:
    """Return the sum of values; `None` if one of them is unknown, or there are none."""
    known = list(values)
    return None if not known or None in known else sum(value for value in known if value is not None)


def largest(values: Iterable[float | None]) -> float | None:
    """Return the largest of the known values, `None` without one."""
    return max((value for value in values if value is not None), default=None)


def _is_no_number(value: Any) -> bool:
    """Return whether a value is infinite or NaN, for which JSON has no number."""
    return isinstance(value, float) and value - value != 0
