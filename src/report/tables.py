"""Compute the tables of a study: how runs scaled, learned and used their devices, and whether parity holds.

A row is a flat dict; a figure that was not measured, or may not be compared, is `None`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from src.config.run_config import MESH
from src.config.schedules import SCHEDULES
from src.measure.arithmetic import (
    bound,
    disturbed,
    few_steps,
    fraction,
    ideal_bubble,
    model_flops_utilization,
    parity_gap,
    parity_holds,
    probes_differ,
    scaling_efficiency,
    speedup,
    train_time_efficiency,
)
from src.partition.schedules import simulation
from src.report import comparison
from src.report.network import NETWORK
from src.report.runs import MEASURED, Row, StudyRun

SCALING = (
    "cell", "status", "framework", "strategy", "model", "dataset", "data_source", "hardware",
    "workers", "batch", "scaling", "microbatches", "samples_per_second",
    "step_seconds_median", "step_seconds_p25", "step_seconds_p75",
    "train_seconds", "seconds_per_epoch", "startup_seconds",
    "speedup", "scaling_efficiency", "speedup_own", "efficiency_own", "train_time_efficiency",
    "bubble_fraction", "bubble_ideal", "busy_fraction", "probe_flag", "shared_device",
    "repetitions", "speedup_low", "speedup_high", "speedup_word", "baseline", "baseline_note", "runs",
    "cpu_wait_fraction", "steal_fraction", "disturbed", "bound", "few_steps", "tokens_per_second",
)  # fmt: skip
ACCURACY = (
    "cell", "status", "framework", "strategy", "model", "dataset", "data_source", "workers", "batch",
    "seed", "epochs", "loss", "accuracy", "train_accuracy", "seconds_to_target", "steps_to_target",
    "speedup", "parity_gap", "parity", "rounding_gap", "parity_reference", "repetitions", "runs",
    "task", "metric", "score", "hardware",
)  # fmt: skip
UTILIZATION = (
    "cell", "status", "framework", "strategy", "workers",
    "utilization_mean", "utilization_max", "utilization_label", "busy_fraction", "input_wait_fraction",
    "memory_mean_bytes", "memory_peak_bytes", "saved_tensors_bytes", "state_bytes", "energy_joules",
    "power_mean_watts", "payload_bytes", "network_bytes", "helper_cpu_seconds",
    "model_flops_utilization", "speedup", "repetitions", "runs", "cpu_wait_fraction", "steal_fraction",
    "disturbed", "model", "dataset", "data_source", "bound", "hardware",
)  # fmt: skip
CURVES = ("cell", "epoch", "accuracy", "loss", "data_source")
# Each run by itself, where the other tables have the medians of its configuration.
RUNS = (
    "cell", "configuration", "repetition", "order", "seed", "status", "framework", "strategy", "workers",
    "batch", "samples_per_second", "train_seconds", "accuracy", "loss", "speedup", "baseline",
    "parity_gap", "cpu_wait_fraction", "steal_fraction", "disturbed", "probe_flag", "started",
    "git_commit", "hostname", "data_source",
)  # fmt: skip
COLUMNS = {
    **{"scaling": SCALING, "accuracy": ACCURACY, "utilization": UTILIZATION},
    **{"network": NETWORK, "runs": RUNS},
}


def scaling(runs: Sequence[StudyRun], named: Mapping[str, Any] | None = None) -> list[Row]:
    """Return the throughput of each run and its ratios to others of these.

    `named` is the baseline that the study names.
    """
    return [_row(run, SCALING) | _ratios(run, runs, named) for run in runs]


def accuracy(runs: Sequence[StudyRun]) -> list[Row]:
    """Return the accuracy of each run and its parity with the single run, with the columns `ACCURACY`."""
    return [_row(run, ACCURACY) | parity(run, runs) for run in runs]


def parity(run: StudyRun, runs: Sequence[StudyRun]) -> Row:
    """Return a run's `parity`, the word for it, with what it stands on.

    `parity_gap` is the largest gap to any run of the reference, `rounding_gap` what one last digit in each
    weight does to the reference itself, `parity_reference` the cells of that.
    """
    if run.status not in MEASURED:
        return {}
    if comparison.is_plain(run):
        return {"parity": "reference", "rounding_gap": run.get("rounding_gap")}
    if run.learns_otherwise:
        return {"parity": run.get("strategy.parity")}
    if run.get("precision") not in (None, "fp32"):
        return {"parity": f"not compared: {run.get('precision')}"}
    local = _local_statistics(run)
    # The local statistics of N workers with m micro-batches each are those of one device with N * m.
    microbatches = (run.get("microbatches") or 1) * (run.sharers if local else 1)
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
    return row | {"parity": _parity_word(row, _reason(run))}


def _parity_word(row: Row, reason: str | None) -> str:
    holds = parity_holds(row["parity_gap"], row["rounding_gap"])
    if holds is None:
        return "unstable"
    if holds:
        return "holds"
    return "BROKEN" if reason is None else f"not compared: {reason}"


def _reason(run: StudyRun) -> str | None:
    """Return what a run's model does in training by which its losses may differ, `None` if nothing is known.

    What it draws may be named by its file, and is else seen in a look at it (`src.runtime.torch.model_look`).
    """
    if named := "dropout" if run.get("model.dropout") else run.get("model.draws"):
        return str(named)
    if run.environment.get("draws_random_numbers"):
        return "random numbers"
    if run.environment.get("moves_buffers") and _shares_batch(run):
        return "each rank's own buffers"
    return None


def _shares_batch(run: StudyRun) -> bool:
    return run.sharers > 1


def _local_statistics(run: StudyRun) -> bool:
    """Return whether the model computes over the samples of each worker's own share of the batch."""
    by_batchnorm = run.environment.get("batch_statistics") and run.get("batchnorm") == "local"
    return _shares_batch(run) and bool(by_batchnorm or run.environment.get("computes_over_batch"))


def utilization(runs: Sequence[StudyRun]) -> list[Row]:
    """Return how far each run used its devices, with the columns `UTILIZATION`."""
    return [
        _row(run, UTILIZATION)
        | {
            "utilization_label": _utilization_label(run),
            "bound": bound(run.get("input_wait_fraction")),
            "model_flops_utilization": _model_flops_utilization(run, runs),
        }
        for run in runs
    ]


def _model_flops_utilization(run: StudyRun, runs: Sequence[StudyRun]) -> float | None:
    """Return a run's model FLOPs utilisation over the largest peak of its device and precision in `runs`.

    A kept peak rises when a run measures a faster product, so that two runs of a study may have divided by
    different numbers (`src/measure/peak.py`). Here the largest one counts for both. A run that doesn't
    say what its peak is of keeps the figure of its own.
    """
    kind = _peak_kind(run)
    peaks = [
        other.environment.get("peak_flops")
        for other in runs
        if kind is not None and _peak_kind(other) == kind
    ]
    known = [float(peak) for peak in peaks if isinstance(peak, int | float)]
    if not known:
        return run.get("model_flops_utilization")
    return model_flops_utilization(
        run.get("flops_per_sample"), run.get("samples_per_second"), run.get("workers") or 1, max(known)
    )


def _peak_kind(run: StudyRun) -> tuple[str, str] | None:
    device, precision = (run.environment.get(key) for key in ("peak_device", "peak_precision"))
    return None if device is None or precision is None else (device, precision)


def curves(runs: Sequence[StudyRun]) -> list[Row]:
    """Return the test accuracy and loss of each evaluation of each run, with the columns `CURVES`."""
    return [
        {
            "cell": run.cell,
            **{key: row.get(key) for key in CURVES[1:-1]},
            "data_source": run.get("data_source"),
        }
        for run in runs
        for row in run.epochs
    ]


def records(runs: Sequence[StudyRun]) -> list[Row]:
    """Return where and when each run was measured, and in which order."""
    moments = sorted(run.environment["started"] for run in runs if run.environment.get("started"))
    return [
        {
            **{key: run.environment.get(key) for key in ("started", "git_commit", "hostname")},
            "configuration": run.configuration,
            "order": moments.index(started) + 1 if (started := run.environment.get("started")) else None,
        }
        for run in runs
    ]


def _row(run: StudyRun, columns: Sequence[str]) -> Row:
    return {key: run.get(key) for key in columns}


def _ratios(run: StudyRun, runs: Sequence[StudyRun], named: Mapping[str, Any] | None) -> Row:
    shared = bool(run.get("shared_device"))
    row: Row = {
        "shared_device": shared if run.metrics else None,
        "bubble_ideal": _ideal_bubble(run),
        "disturbed": disturbed(run.metrics),
        "bound": bound(run.get("input_wait_fraction")),
        "few_steps": few_steps(run.get("timed_steps")),
    }
    if not run.comparable:
        return row
    workers, rate = run.get("workers") or 1, run.get("samples_per_second")
    single = comparison.speed_baseline(run, runs, named)
    own = comparison.own_baseline(run, runs).runs
    row["baseline"] = " ".join(base.cell for base in single.runs)
    row["baseline_note"] = single.note
    row["speedup"] = speedup(rate, comparison.in_block(run, single.runs, "samples_per_second"))
    row["scaling_efficiency"] = scaling_efficiency(row["speedup"], workers)
    row["speedup_own"] = speedup(rate, comparison.in_block(run, own, "samples_per_second"))
    row["efficiency_own"] = scaling_efficiency(row["speedup_own"], workers)
    finished = [base for base in single.runs if comparison.same_amount(base, run)]
    row["train_time_efficiency"] = train_time_efficiency(
        comparison.in_block(run, finished, "train_seconds"), workers, run.get("train_seconds")
    )
    compared = [*(single.runs if row["speedup"] else ()), *(own if row["speedup_own"] else ())]
    row["probe_flag"] = _probe_flag(run, compared)
    row["ratio_disturbed"] = _any_known([disturbed(each.metrics) for each in (run, *compared)])
    return row


def _probe_flag(run: StudyRun, compared: Sequence[StudyRun]) -> bool | None:
    """Return whether the machine's speed differed within the run or from those compared with.

    `None` where nothing is compared, or a probe is missing.
    """
    if not compared or not all(each.probe for each in (run, *compared)):
        return None
    changed = any(each.environment.get("probe_changed") for each in (run, *compared))
    return changed or any(probes_differ(run.probe, base.probe) for base in compared)


def _any_known(flags: Sequence[bool | None]) -> bool | None:
    """Return whether one of the flags is set; `None` where none is known."""
    known = [flag for flag in flags if flag is not None]
    return any(known) if known else None


def _ideal_bubble(run: StudyRun) -> float | None:
    schedule = run.get("strategy.schedule") or run.get("strategy")
    if run.get("strategy.supports.axis") == MESH and run.stages == 1:
        return None
    microbatches = run.get("microbatches") or 1
    virtual = run.get("strategy.virtual_stages") or 1
    try:
        if schedule in SCHEDULES:
            return simulation.ideal_bubble(schedule, run.stages, virtual, microbatches)
        return ideal_bubble(schedule, run.stages, microbatches)
    except ValueError:
        return None


def _utilization_label(run: StudyRun) -> str | None:
    if not run.metrics:
        return None
    return "NVML" if run.get("hardware.device") == "gpu" else "occupancy, spin included"


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
    `evaluations` is the run's curve, `StudyRun.epochs`; `run` is the run itself, `over` its baseline's label.
    Each of the `tables` has one row a run, in the order of `runs`; labels are by cell.
    """
    rows: list[Row] = []
    for place, run in enumerate(runs):
        row: Row = dict(run.facts)
        for table in tables.values():
            row |= {key: value for key, value in table[place].items() if value is not None or key not in row}
        seconds = fraction(run.get("step_seconds_median"), run.global_batch)
        milliseconds = None if seconds is None else seconds * 1e3
        row |= {
            "label": labels[run.cell],
            "seconds_per_sample": seconds,
            "milliseconds_per_sample": milliseconds,
            "evaluations": run.epochs,
            "run": run,
            "over": " or ".join(dict.fromkeys(labels[cell] for cell in (row.get("baseline") or "").split())),
            **_summed(row),
        }
        rows.append(row)
    return rows
