"""Put a run into words for the terminal: what it is going to train, and what has come of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from src.config import Config
from src.measure import arithmetic
from src.run import files
from src.run.tables import read_table


def describe(config: Config) -> str:
    """Return a sentence on what a run trains."""
    kind, data = config.hardware.device, config.dataset["name"]
    if config.dataset["source"] != "original":
        data += f" ({config.dataset['source']})"
    batch = f"batch {config.global_batch}" + (
        f" = {config.workers} x {config.batch}" if config.scaling == "weak" else ""
    )
    return (
        f"{config.strategy['name']} trains {config.model['name']} on {data}, {batch}, "
        f"{config.workers} {kind} worker(s), {config.epochs} epoch(s) or {config.max_minutes:g} min"
    )


def summarize(metrics: Mapping[str, Any]) -> str:
    """Return a line with a run's main results, and others if its input bound it or it was disturbed."""

    def show(key: str, format_spec: str) -> str:
        return "-" if metrics[key] is None else format(metrics[key], format_spec)

    tokens = (
        "" if metrics.get("tokens_per_second") is None else f" ({show('tokens_per_second', ',.0f')} tokens/s)"
    )
    # A run that was recorded before there were tasks has no `metric`.
    metric, key = (metrics["metric"], "score") if "metric" in metrics else ("accuracy", "accuracy")
    line = (
        f"  {metrics['status']}: {metric} {show(key, '.4f')}, loss {show('loss', '.4f')}, "
        f"{show('samples_per_second', ',.0f')} samples/s{tokens}, trained {show('train_seconds', '.1f')} s, "
        f"started in {show('startup_seconds', '.1f')} s, total {show('total_seconds', '.1f')} s"
    )
    lines = [line]
    if arithmetic.bound(metrics.get("input_wait_fraction")) == "input":
        waited = f"{metrics['input_wait_fraction']:.0%}"
        lines.append(f"  bound by input: ranks waited {waited} of the time for their next batch")
    if arithmetic.disturbed(metrics):
        lines.append(disturbance(metrics))
    return "\n".join(lines)


def disturbance(metrics: Mapping[str, Any]) -> str:
    """Return a line on what kept a run from its cores."""
    causes = {
        "cpu_wait_fraction": "a rank waited {} of the time for cores that other processes used",
        "steal_fraction": "the hypervisor took {} of a rank's cores",
    }
    parts = [
        text.format(f"{metrics[key]:.0%}")
        for key, text in causes.items()
        if metrics[key] is not None and metrics[key] > arithmetic.DISTURBED
    ]
    return f"  disturbed: {', and '.join(parts)}; its speed says little"


def differing(config: Config, environment: Mapping[str, Any]) -> list[str]:
    """Return lines on what a run's model did in training that one device wouldn't do, or none.

    BatchNorm's statistics, which `batchnorm` chooses, and what a model draws at random are not among it.
    """
    if not config.synchronous or config.data_parallel_degree == 1:
        return []
    lines = []
    if moved := environment.get("moves_buffers"):
        others = f" and {len(moved) - 2} more" if len(moved) > 2 else ""
        lines.append(
            f"  note: each worker changes {', '.join(moved[:2])}{others} by its own samples alone; the first "
            "one's are evaluated and kept"
        )
    if environment.get("computes_over_batch"):
        lines.append(
            "  note: the loss of a batch is no mean over samples that are computed one by one; "
            "each worker has that of its own part"
        )
    return (
        [*lines, "  so losses may be others than those of one device with the whole batch"] if lines else []
    )


def profiled(out: Path) -> list[str]:
    """Return lines on the profiled steps of the run in the directory `out`, none if there are no tables.

    They say what ranks did in a step, how much of each kind of exchange was hidden behind compute, and which
    rank the others waited for.
    """
    steps = read_table(out / files.PROFILE / files.PROFILED_STEPS)
    if not steps:
        return []

    def total(key: str) -> float:
        return sum(row[key] for row in steps)

    whole = total("seconds")
    parts = (
        ("computes", "compute_seconds"),
        ("waits for others", "waiting_seconds"),
        ("for input", "input_seconds"),
    )
    shares = ", ".join(f"{word} {total(key) / whole:.0%}" for word, key in parts)
    # A GPU stands idle in it while the host prepares its next operation.
    rest = 1 - sum(total(key) for _, key in parts) / whole
    if rest > 0:
        shares += f", does none of these {rest:.0%}"
    ends = min(int(row["step"]) for row in steps), max(int(row["step"]) for row in steps)
    mean = whole / len(steps)
    lines = [f"  profile of steps {ends[0]} to {ends[1]}: of {1e3 * mean:.1f} ms a step, a rank {shares}"]
    seconds, hidden = defaultdict[str, float](float), defaultdict[str, float](float)
    for row in read_table(out / files.PROFILE / files.PROFILED_EXCHANGES):
        seconds[row["kind"]] += row["seconds"]
        hidden[row["kind"]] += row["hidden_seconds"]
    shown = [
        f"{kind} {1e3 * took / len(steps):.1f} ms ({hidden[kind] / took:.0%} hidden)"
        for kind, took in seconds.items()
        if took
    ]
    if shown:
        lines.append(f"  exchange, a step and rank: {', '.join(shown)}")
    slowest = Counter(int(row["rank"]) for row in steps if row["slowest"])
    if len({row["rank"] for row in steps}) > 1:
        rank, times = slowest.most_common(1)[0]
        lines.append(f"  slowest rank: {rank}, in {times} of {sum(slowest.values())} steps")
    return [*lines, f"  {out / files.PROFILE / files.ALL_RANKS}: open it in https://ui.perfetto.dev"]
