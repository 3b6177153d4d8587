"""Put a run into words for the terminal: what it is going to train, and what has come of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from src.config import Config
from src.measure import arithmetic


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

    # A run that was recorded before there were tasks has no `metric`.
    metric, key = (metrics["metric"], "score") if "metric" in metrics else ("accuracy", "accuracy")
    line = (
        f"  {metrics['status']}: {metric} {show(key, '.4f')}, loss {show('loss', '.4f')}, "
        f"{show('samples_per_second', ',.0f')} samples/s, trained {show('train_seconds', '.1f')} s, "
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
