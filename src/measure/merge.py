"""From the ranks' records to the run's results: steps.csv, epochs.csv, metrics.json, environment.json."""

from __future__ import annotations

import csv
import json
import shutil
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from src.config import Config
from src.measure import arithmetic, timeline
from src.measure.rank_files import STEP_FIELDS
from src.rundir import write

# Every key of metrics.json, in the order in which it is written (docs/ARCHITECTURE.md, "Results").
KEYS = (
    *("status", "framework", "strategy", "model", "dataset", "data_source", "hardware", "workers", "batch"),
    *("scaling", "microbatches", "seed", "epochs", "parameters", "train_seconds", "total_seconds"),
    *("startup_seconds", "seconds_per_epoch", "samples_per_second", "validation_samples_per_second"),
    *("step_seconds_median", "step_seconds_p25", "step_seconds_p75", "seconds_to_target", "steps_to_target"),
    *("loss", "accuracy", "train_accuracy", "utilization_mean", "utilization_max", "busy_fraction"),
    *("helper_cpu_seconds", "memory_mean_bytes", "memory_peak_bytes", "saved_tensors_bytes", "energy_joules"),
    *("power_mean_watts", "payload_bytes", "network_bytes", "input_wait_fraction", "flops_per_sample"),
    *("model_flops_utilization", "bubble_fraction", "staleness_mean", "clock_gap_max", "restarts"),
    *("shared_device", "mlflow_run_id"),
)
# Of each rank (workers.csv), over the timed window: exchanging includes waiting for others.
WORKER_FIELDS = (
    *("rank", "steps", "samples", "seconds", "busy_seconds", "exchange_seconds"),
    *("fetched_bytes", "pushed_bytes", "staleness_mean", "staleness_max"),
)
# Of a strategy's parity: its workers take turns, each at its own pace.
TAKE_TURNS = ("asynchronous", "stale")
Rows = list[dict[str, Any]]


def merge(
    config: Config,
    folder: Path,
    *,
    status: str,
    total_seconds: float,
    trace: Rows,
    helper_seconds: Sequence[tuple[float, float]] = (),
    environment: dict[str, Any],
    restarts: int = 0,
    run_id: str | None,
) -> dict[str, Any]:
    """Writes the result files of `folder` from `folder/ranks`, which it removes, and returns the metrics.

    `status` is what the parent saw; a rank's own result (`time_limit`, `diverged`) takes its place
    when that is `ok`. Whatever a failed run recorded is kept.
    """
    ranks = folder / "ranks"
    steps = {int(path.parent.name): _read(path) for path in sorted(ranks.glob("*/steps.csv"))}
    records = {int(path.parent.name): json.loads(path.read_text()) for path in ranks.glob("*/record.json")}
    epochs = _read(ranks / "0" / "epochs.csv")
    if status == "ok":
        status = next((r["status"] for r in records.values() if r["status"] != "ok"), "ok")
    _write_steps(folder / "steps.csv", config, steps)
    if (ranks / "0" / "epochs.csv").exists():
        shutil.copyfile(ranks / "0" / "epochs.csv", folder / "epochs.csv")
    _write_workers(folder / "workers.csv", config, steps, records)
    first = records.get(0, {})
    environment = {
        **environment,
        "peak_flops": first.get("peak_flops"),
        "peak_source": first.get("peak_source"),
        "batch_statistics": first.get("batch_statistics"),
        "mean_rank_train_seconds": first.get("mean_rank_train_seconds"),
        "probes": {
            "before": [records[rank].get("probe_before") for rank in sorted(records)],
            "after": [records[rank].get("probe_after") for rank in sorted(records)],
        },
    }
    write(folder / "environment.json", json.dumps(environment, indent=1))
    timelines = _timelines(ranks)
    if timelines:
        write(folder / "timeline.json", json.dumps(timeline.chrome_trace(timelines)))
    known = {
        "status": status,
        "framework": config.framework,
        "strategy": config.strategy["name"],
        "model": config.model["name"],
        "dataset": config.dataset["name"],
        "data_source": config.dataset["data_source"],
        "hardware": config.hardware["name"],
        "total_seconds": total_seconds,
        "shared_device": bool(config.hardware["share_devices"]),
        "restarts": restarts,
        "clock_gap_max": first.get("clock_gap_max"),
        "helper_cpu_seconds": _helpers(helper_seconds, records.values()),
        "bubble_fraction": timeline.bubble_fraction(timelines),
        "mlflow_run_id": run_id,
        **{key: getattr(config, key) for key in ("workers", "batch", "scaling", "microbatches", "seed")},
        **_timing(config, steps, records),
        **_evaluations(epochs),
        **_resources(config, records, trace),
    }
    metrics = {key: known.get(key) for key in KEYS}
    metrics["model_flops_utilization"] = arithmetic.model_flops_utilization(
        metrics["flops_per_sample"], metrics["samples_per_second"], config.workers, first.get("peak_flops")
    )
    write(folder / "metrics.json", json.dumps(_finite(metrics), indent=1))
    shutil.rmtree(ranks)
    return metrics


def _timelines(ranks: Path) -> dict[int, list[list[Any]]]:
    found = {int(path.parent.name): json.loads(path.read_text()) for path in ranks.glob("*/timeline.json")}
    return dict(sorted(found.items()))


def _read(path: Path) -> Rows:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        # A killed rank may leave half a line.
        whole = [row for row in csv.DictReader(file) if None not in row.values()]
    return [{key: _number(value) for key, value in row.items() if key is not None} for row in whole]


def _number(text: str) -> float | None:
    return None if text == "" else float(text)


def _write_steps(path: Path, config: Config, steps: dict[int, Rows]) -> None:
    """All ranks' steps; for a synchronous strategy the loss is the mean over the global batch."""
    losses = _global_losses(steps) if config.strategy["parity"] == "synchronous" else {}
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("rank", *STEP_FIELDS))
        for rank, rows in steps.items():
            for row in rows:
                known = {**row, "loss": losses.get(row["step"], row["loss"])}
                whole = {key: int(known[key]) for key in ("epoch", "step", "samples")}
                cells = [{**known, **whole}[field] for field in STEP_FIELDS]
                writer.writerow([rank, *("" if cell is None else cell for cell in cells)])


def _write_workers(path: Path, config: Config, steps: dict[int, Rows], records: dict[int, Any]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, WORKER_FIELDS)
        writer.writeheader()
        for rank, every in sorted(steps.items()):
            rows, record = every[config.warmup_steps :], records.get(rank, {})
            staleness = [row["staleness"] for row in rows if row["staleness"] is not None]
            row = {
                "rank": rank,
                "steps": len(rows),
                "samples": round(sum(row["samples"] for row in rows)),
                "seconds": sum(row["seconds"] for row in rows),
                "busy_seconds": record.get("busy_seconds"),
                "exchange_seconds": record.get("communication_seconds"),
                # Known of who takes turns, for whom they are two things.
                **{
                    key: record.get(key)
                    for key in ("exchange_seconds", "fetched_bytes", "pushed_bytes")
                    if key in record
                },
                "staleness_mean": arithmetic.mean(staleness),
                "staleness_max": _most(staleness),
            }
            writer.writerow({key: "" if value is None else value for key, value in row.items()})


def _global_losses(steps: dict[int, Rows]) -> dict[float, float]:
    """Sample-weighted mean loss by step, where every rank has completed it."""
    parts: dict[float, list[tuple[float, float]]] = defaultdict(list)
    for rows in steps.values():
        for row in rows:
            if row["loss"] is not None:
                parts[row["step"]].append((row["loss"], row["samples"]))
    return {
        step: sum(loss * samples for loss, samples in found) / sum(samples for _, samples in found)
        for step, found in parts.items()
        if len(found) == len(steps)
    }


def _timing(config: Config, steps: dict[int, Rows], records: dict[int, Any]) -> dict[str, Any]:
    warmup = config.warmup_steps
    timed = {rank: rows[warmup:] for rank, rows in steps.items()}
    p25, middle, p75 = arithmetic.spread([row["seconds"] for row in timed.get(0, [])])
    shared = config.strategy["supports"]["shares_batch"]
    rate = _rate(config, list(timed.values()))
    train_seconds = [sum(row["seconds"] for row in rows) for rows in steps.values()]
    trained = max(train_seconds) if train_seconds else None
    per_epoch = records.get(0, {}).get("steps_per_epoch")
    # Those who share the batch have seen it together; the others each have seen all of it.
    seen = steps.values() if shared else [steps.get(0, [])]
    samples = sum(row["samples"] for rows in seen for row in rows)
    epochs = samples / (per_epoch * config.global_batch) if per_epoch else None
    staleness = [row["staleness"] for rows in timed.values() for row in rows if row["staleness"] is not None]
    return {
        "epochs": None if epochs is None else round(epochs, 4),
        "train_seconds": trained,
        "seconds_per_epoch": arithmetic.fraction(trained, epochs),
        "samples_per_second": rate,
        "step_seconds_p25": p25,
        "step_seconds_median": middle,
        "step_seconds_p75": p75,
        "startup_seconds": _most(record.get("startup_seconds") for record in records.values()),
        "staleness_mean": arithmetic.mean(staleness),
    }


def _rate(config: Config, ranks: Sequence[Rows]) -> float | None:
    worked = [([row["samples"] for row in rows], [row["seconds"] for row in rows]) for rows in ranks]
    if config.strategy["parity"] in TAKE_TURNS:
        return arithmetic.turns_rate(worked)
    rates = [arithmetic.samples_per_second(*one) for one in worked]
    known = [rate for rate in rates if rate is not None]
    if not known or len(known) < len(rates):
        return None
    return arithmetic.job_rate(known, config.strategy["supports"]["shares_batch"])


def _evaluations(epochs: Rows) -> dict[str, Any]:
    if not epochs:
        return {}
    last = epochs[-1]
    return {key: last[key] for key in ("loss", "accuracy", "train_accuracy")}


def _resources(config: Config, records: dict[int, Any], trace: Rows) -> dict[str, Any]:
    found = list(records.values())
    first = records.get(0, {})
    inside = [row for row in trace if _in_window(row["time"], records.get(row["rank"]))]
    used = [row["utilization"] for row in inside if row["utilization"] is not None]
    memory = defaultdict(list)
    for row in inside:
        level = records[row["rank"]].get("memory_level_bytes")
        if level is not None:
            memory[row["rank"]].append(max(0, row["memory_bytes"] - level))
    watts: dict[float, float] = defaultdict(float)
    for row in inside:
        if row["power_watts"] is not None:
            watts[row["time"]] += row["power_watts"]
    wall = _total(record.get("window_seconds") for record in found)
    waited = _total(record.get("input_seconds") for record in found)
    busy = _total(record.get("busy_seconds") for record in found)
    saved = first.get("saved_tensor_bytes_per_sample")
    power = arithmetic.mean(list(watts.values()))
    validation = first.get("validation_samples_per_second")
    return {
        "parameters": first.get("parameters"),
        "validation_samples_per_second": validation,
        "seconds_to_target": first.get("seconds_to_target"),
        "steps_to_target": first.get("steps_to_target"),
        "utilization_mean": arithmetic.mean(used),
        "utilization_max": _most(used),
        "busy_fraction": arithmetic.fraction(busy, wall),
        "input_wait_fraction": arithmetic.fraction(waited, wall),
        # Per device, as the peak is: the largest rank's.
        "memory_mean_bytes": _most(arithmetic.mean(values) for values in memory.values()),
        "memory_peak_bytes": _most(record.get("memory_peak_bytes") for record in found),
        "saved_tensors_bytes": None if saved is None else round(saved * config.microbatch),
        "power_mean_watts": power,
        "energy_joules": arithmetic.energy(power, first.get("window_seconds")),
        "payload_bytes": _total(record.get("payload_bytes") for record in found),
        "flops_per_sample": first.get("flops_per_sample"),
    }


def _helpers(used: Sequence[tuple[float, float]], records: Iterable[dict[str, Any]]) -> float | None:
    """CPU seconds of servers and coordinators within the timed window, evaluations included."""
    windows = [record["window"] for record in records if "window" in record]
    if not windows:
        return None
    start, end = min(begun for begun, _ in windows), max(ended for _, ended in windows)
    inside = [seconds for moment, seconds in used if start <= moment <= end]
    return inside[-1] - inside[0] if inside else None


def _in_window(moment: float, record: dict[str, Any] | None) -> bool:
    if not record or "window" not in record:
        return False
    start, end = record["window"]
    return start <= moment <= end and not any(a <= moment <= b for a, b in record["off_clock"])


def _total(values: Iterable[float | None]) -> float | None:
    known = list(values)
    return None if not known or None in known else sum(value for value in known if value is not None)


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _finite(metrics: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinities: a loss that is no number is null, and the status says `diverged`."""
    return {
        key: None if isinstance(value, float) and value - value != 0 else value
        for key, value in metrics.items()
    }
