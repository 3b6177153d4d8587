"""Compute the tables of a study: how runs scaled, how well they learned, and how they used their devices.

A row is a flat dict; a figure that was not measured, or may not be compared, is `None`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from src.measure.arithmetic import (
    fraction,
    ideal_bubble,
    mean,
    parity_gap,
    parity_holds,
    probes_differ,
    scaling_efficiency,
    speedup,
    train_time_efficiency,
)
from src.report.runs import MEASURED, Row, StudyRun

# The plain run of each framework, against which everything else of that framework is measured.
SINGLE = {"torch": "single", "tensorflow": "tf_single"}
# A weak-scaled run's `batch` is each worker's, so its baseline is the single run of the same `batch` too.
SAME_WORK = (
    *("framework", "model", "dataset", "batch", "precision", "optimizer.name"),
    *("hardware", "hardware.device", "hardware.cores_per_device"),
)
SAME_ANSWER = ("framework", "model", "dataset", "data_source", "seed", "precision")

SCALING = (
    *("cell", "status", "framework", "strategy", "model", "dataset", "data_source", "hardware"),
    *("workers", "batch", "scaling", "microbatches", "samples_per_second"),
    *("step_seconds_median", "step_seconds_p25", "step_seconds_p75"),
    *("train_seconds", "seconds_per_epoch", "startup_seconds"),
    *("speedup", "scaling_efficiency", "speedup_own", "efficiency_own", "train_time_efficiency"),
    *("bubble_fraction", "bubble_ideal", "busy_fraction", "probe_flag", "shared_device"),
)
ACCURACY = (
    *("cell", "status", "framework", "strategy", "model", "dataset", "data_source", "workers", "batch"),
    *("seed", "epochs", "loss", "accuracy", "train_accuracy", "seconds_to_target", "steps_to_target"),
    *("speedup", "parity_gap", "parity"),
)
UTILIZATION = (
    *("cell", "status", "framework", "strategy", "workers"),
    *("utilization_mean", "utilization_max", "utilization_label", "busy_fraction", "input_wait_fraction"),
    *("memory_mean_bytes", "memory_peak_bytes", "saved_tensors_bytes", "energy_joules"),
    *("power_mean_watts", "payload_bytes", "network_bytes", "helper_cpu_seconds"),
    *("model_flops_utilization", "speedup"),
)
CURVES = ("cell", "epoch", "accuracy", "loss")


def scaling(runs: Sequence[StudyRun]) -> list[Row]:
    """Return the throughput of each run and every ratio of it, with the columns `SCALING`."""
    return [_row(run, SCALING) | _ratios(run, runs) for run in runs]


def accuracy(runs: Sequence[StudyRun]) -> list[Row]:
    """Return the accuracy of each run and its parity with the single run, with the columns `ACCURACY`."""
    return [_row(run, ACCURACY) | _parity(run, runs) for run in runs]


def utilization(runs: Sequence[StudyRun]) -> list[Row]:
    """Return how far each run used its devices, with the columns `UTILIZATION`."""
    return [_row(run, UTILIZATION) | {"utilization_label": _utilization_label(run)} for run in runs]


def curves(runs: Sequence[StudyRun]) -> list[Row]:
    """Return the test accuracy and loss of each evaluation of each run, with the columns `CURVES`."""
    return [
        {"cell": run.cell} | {key: row.get(key) for key in CURVES[1:]} for run in runs for row in run.epochs
    ]


def _row(run: StudyRun, columns: Sequence[str]) -> Row:
    return {key: run.get(key) for key in columns}


def _ratios(run: StudyRun, runs: Sequence[StudyRun]) -> Row:
    shared = bool(run.get("shared_device"))
    row: Row = {"shared_device": shared if run.metrics else None, "bubble_ideal": _ideal_bubble(run)}
    if not run.comparable:
        return row
    workers, rate = run.get("workers") or 1, run.get("samples_per_second")
    single, own = baselines(run, runs), baselines(run, runs, own=True)
    finished = [
        base for base in single if base.status == run.status == "ok" and _same(base, run, ("epochs",))
    ]
    row["speedup"] = speedup(rate, _mean_of(single, "samples_per_second"))
    row["scaling_efficiency"] = scaling_efficiency(row["speedup"], workers)
    row["speedup_own"] = speedup(rate, _mean_of(own, "samples_per_second"))
    row["efficiency_own"] = scaling_efficiency(row["speedup_own"], workers)
    row["train_time_efficiency"] = train_time_efficiency(
        _mean_of(finished, "train_seconds"), workers, run.get("train_seconds")
    )
    compared = (row["speedup"], single), (row["speedup_own"], own)
    probes = [
        mean([base.probe for base in bases if base.probe]) for ratio, bases in compared if ratio is not None
    ]
    row["probe_flag"] = any(probes_differ(run.probe, probe) for probe in probes) if probes else None
    return row


def baselines(run: StudyRun, runs: Sequence[StudyRun], *, own: bool = False) -> list[StudyRun]:
    """Return the runs whose mean is the denominator of `run`'s ratios: those of its seed, or of all seeds.

    These did the same work on one device: the framework's `single` run with the fewest micro-batches,
    or with `own` the same strategy, options and micro-batches at one worker.
    """
    bases = [base for base in runs if base.comparable and _same(base, run, SAME_WORK)]
    bases = [base for base in bases if _same_choice(base, run, ("model", "dataset"))]
    bases = [base for base in bases if (base.get("workers") or 1) == 1]
    if own:
        bases = [base for base in bases if _same(base, run, ("strategy", "microbatches"))]
        bases = [base for base in bases if _same_choice(base, run, ("strategy",))]
    else:
        bases = [base for base in bases if _is_single(base)]
        fewest = min((base.get("microbatches") or 1 for base in bases), default=1)
        bases = [base for base in bases if (base.get("microbatches") or 1) == fewest]
    return [base for base in bases if _same(base, run, ("seed",))] or bases


def _same(one: StudyRun, other: StudyRun, keys: Sequence[str]) -> bool:
    return all(one.get(key) == other.get(key) for key in keys)


def _same_choice(one: StudyRun, other: StudyRun, groups: Sequence[str]) -> bool:
    return all(one.config.get(group) == other.config.get(group) for group in groups)


def _mean_of(runs: Sequence[StudyRun], key: str) -> float | None:
    return mean([run.get(key) for run in runs if run.get(key) is not None])


def _ideal_bubble(run: StudyRun) -> float | None:
    schedule = run.get("strategy.schedule") or run.get("strategy")
    virtual = run.get("strategy.virtual_stages") or 1
    stages = (run.get("workers") or 1) * (1 if schedule == "interleaved" else virtual)
    try:
        return ideal_bubble(schedule, stages, run.get("microbatches") or 1, virtual)
    except ValueError:
        return None


def _parity(run: StudyRun, runs: Sequence[StudyRun]) -> Row:
    """Return the gap to the single run of the same seed and global batch, and the word for it."""
    if run.status not in MEASURED:
        return {}
    if _is_single(run):
        return {"parity": "reference"}
    if run.get("strategy.synchronous") is False:
        return {"parity": run.get("strategy.parity")}
    if run.get("precision") not in (None, "fp32"):
        return {"parity": f"not compared: {run.get('precision')}"}
    gap = _gap_to_single(run, runs)
    if gap is None:
        return {"parity": "local statistics" if _local_statistics(run) else "no reference"}
    if not parity_holds(gap) and run.get("model.dropout"):
        return {"parity_gap": gap, "parity": "not compared: dropout"}
    return {"parity_gap": gap, "parity": "holds" if parity_holds(gap) else "BROKEN"}


def _is_single(run: StudyRun) -> bool:
    return run.get("strategy") is not None and run.get("strategy") == SINGLE.get(run.get("framework"))


def _local_statistics(run: StudyRun) -> bool:
    """Return whether the model normalises by statistics of each worker's own share of the batch."""
    shared = run.get("strategy.supports.shares_batch") and (run.get("workers") or 1) > 1
    return bool(shared and run.environment.get("batch_statistics") and run.get("batchnorm") == "local")


def _whole_batch_counts(base: StudyRun, run: StudyRun) -> bool:
    """Return whether neither model has statistics of a batch: micro-batches then change rounding alone."""
    return all(known.environment.get("batch_statistics") is False for known in (base, run))


def _gap_to_single(run: StudyRun, runs: Sequence[StudyRun]) -> float | None:
    # The local statistics of N workers with m micro-batches each are those of one device with N * m.
    microbatches = (run.get("microbatches") or 1) * (
        (run.get("workers") or 1) if _local_statistics(run) else 1
    )
    gaps = [
        parity_gap(run.losses, base.losses)
        for base in runs
        if _is_single(base)
        and _same(base, run, SAME_ANSWER)
        and _same_choice(base, run, ("model", "dataset", "optimizer"))
        and base.global_batch == run.global_batch
        and (_whole_batch_counts(base, run) or (base.get("microbatches") or 1) == microbatches)
    ]
    return min((gap for gap in gaps if gap is not None), default=None)


def _utilization_label(run: StudyRun) -> str | None:
    if not run.metrics:
        return None
    return "NVML" if run.get("hardware.device") in ("gpu", "cuda") else "occupancy, spin included"


def _summed(row: Row) -> Row:
    """Return the devices' utilisation summed, as paper 4 gives it: 200 % are two busy devices."""
    workers, used, most = row.get("workers") or 1, row.get("utilization_mean"), row.get("utilization_max")
    return {
        "utilization_mean_summed": None if used is None else used * workers,
        "utilization_max_summed": None if most is None else most * workers,
    }


def merged(
    runs: Sequence[StudyRun], tables: Mapping[str, Sequence[Row]], labels: Mapping[str, str]
) -> list[Row]:
    """Merge everything known of each run into one flat row, which rules, figures and views read.

    `seconds_per_sample` is the median step over the global batch: a time even for a run too short for a rate.
    `evaluations` is the only list: the run's curve, `StudyRun.epochs`.

    Args:
        runs: the study's runs.
        tables: tables by name, with one row a run in the same order.
        labels: labels by cell.
    """
    rows: list[Row] = []
    for place, run in enumerate(runs):
        row: Row = dict(run.facts)
        for table in tables.values():
            row |= table[place]
        seconds = fraction(run.get("step_seconds_median"), run.global_batch)
        milliseconds = None if seconds is None else seconds * 1e3
        row |= {
            "label": labels[run.cell],
            "seconds_per_sample": seconds,
            "milliseconds_per_sample": milliseconds,
            "evaluations": run.epochs,
            **_summed(row),
        }
        rows.append(row)
    return rows
