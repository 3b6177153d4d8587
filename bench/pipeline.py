"""Compare the step of a pipeline of two stages with its ideal step: `python -m bench.pipeline`.

The ideal step of a cut takes (m - 1) max t + sum t + the slowest optimizer step, where m is the number of
micro-batches and t the seconds of a stage's forward and backward pass of one micro-batch. Each t is measured
while the other stage is idle: under `model_split`, with the same cut and the same micro-batches. The machine
limits how fast both stages can work at once, by the factor C(2) / 2.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import correlation, median
from typing import Any

from bench import runs
from bench.compare import Comparison, ratios, table
from bench.rounds import Rounds, collect
from src.measure.arithmetic import ideal_bubble, ideal_step_seconds

MODEL, BATCH, MICROBATCHES, STEPS = "resnet18", 128, 8, 56
# Where the plain script cuts.
BY_HAND = "[layer3]"
METHODS = ("optimal", "time", "size", "layers")
CUTS = 10


def main() -> int:
    """Run the rounds and print the tables, which bench/out/ keeps with every figure behind them; return 0."""
    rounds = runs.parse_rounds("pipeline", __doc__)
    repeatable = Rounds()
    comparisons, figures = _against_ideal(rounds, repeatable)
    text = [table(comparisons), repeatable.note(), _bubble_table(), _random_cuts(figures), _memory_table()]
    Path("bench/out/pipeline.md").write_text("\n\n".join(text) + "\n")
    Path("bench/out/pipeline.json").write_text(json.dumps(figures, indent=1))
    print("\n\n".join(text))
    return 0


def _run(strategy: str = "pipeline", *words: str, m: int = MICROBATCHES) -> dict[str, Any]:
    """Train two stages; return the run's metrics, with its `cut` and its `timeline`."""
    out = runs.OUT / f"{strategy}-{MODEL}"
    return runs.train(
        f"strategy={strategy}",
        "workers=2",
        f"model={MODEL}",
        f"batch={BATCH}",
        f"microbatches={m}",
        f"dataset.limit={BATCH * STEPS}",
        *words,
        out=out,
    )


def ideal_seconds(split: dict[str, Any]) -> float:
    """Return the seconds of a cut's ideal step.

    `split` are the metrics of a run under `model_split` with that cut, and its `timeline`.
    """
    passes: dict[tuple[int, int, int], float] = defaultdict(float)
    updates: dict[int, list[float]] = defaultdict(list)
    for event in split["timeline"]:
        seconds, where = event["dur"] / 1e6, event["args"]
        if event["cat"] in ("forward", "loss", "backward"):
            passes[event["pid"], where["step"], where["microbatch"]] += seconds
        elif event["cat"] == "optimizer":
            updates[event["pid"]].append(seconds)
    stages = sorted(updates)
    stage_seconds = [
        median(value for (pid, _, _), value in passes.items() if pid == stage) for stage in stages
    ]
    slowest_update = max(median(updates[stage]) for stage in stages)
    return ideal_step_seconds(stage_seconds, split["microbatches"], slowest_update)


def _against_ideal(count: int, rounds: Rounds) -> tuple[list[Comparison], dict[str, Any]]:
    contestants: list[Callable[[], dict[str, float]]] = [
        *(partial(_run_method, method) for method in METHODS),
        _run_by_hand,
        _run_plain_script,
        _run_single,
    ]

    def measure(number: int) -> dict[str, float]:
        """Return each contestant's rates."""
        figures: dict[str, float] = {}
        # Another one goes first in each round: what ran before leaves its mark on a shared machine.
        first = number % len(contestants)
        for contestant in contestants[first:] + contestants[:first]:
            figures |= contestant()
        last = ", ".join(f"{name} {rate:.4g}" for name, rate in figures.items())
        print(f"pipeline round {number + 1}: {last}", file=sys.stderr, flush=True)
        return figures

    rates = collect(rounds.run(count, measure))
    reachable = [a * b for a, b in zip(rates["ideal"], rates["half of C(2)"], strict=True)]
    comparisons = [
        Comparison("pipeline / (its ideal x C(2)/2)", ratios(rates["optimal"], reachable), 0.90),
        Comparison("pipeline / plain script, same cut", ratios(rates["by hand"], rates["plain script"]), 1.0),
        *(Comparison(f"optimal / {m}", ratios(rates["optimal"], rates[m]), 1.0) for m in METHODS[1:]),
        Comparison("pipeline / single", ratios(rates["optimal"], rates["single"]), None),
    ]
    return comparisons, dict[str, Any](rates)


def _run_method(method: str) -> dict[str, float]:
    metrics = _run("pipeline", f"strategy.partition={method}")
    rates = {method: metrics["samples_per_second"]}
    if method == "optimal":
        rates["ideal"] = BATCH / ideal_seconds(_run("model_split", _cut_override(metrics["cut"])))
    return rates


def _run_by_hand() -> dict[str, float]:
    return {"by hand": _run("pipeline", f"strategy.partition={BY_HAND}")["samples_per_second"]}


def _run_plain_script() -> dict[str, float]:
    return {"plain script": runs.run_peer("torch_pipeline.py", MODEL, BATCH, STEPS, workers=2).rate}


def _run_single() -> dict[str, float]:
    rate = runs.run_scaleguide("single", MODEL, BATCH, STEPS).rate
    return {"single": rate, "half of C(2)": runs.summed_rate(MODEL, BATCH, STEPS) / rate / 2}


def _cut_override(cut: dict[str, Any]) -> str:
    """Return the override that asks for the given cut into two stages."""
    boundary = cut["boundaries"][0]
    return f"strategy.partition=[{boundary},{cut['operations'] - boundary}]"


def _bubble_table() -> str:
    """Return a table of the measured bubble beside the schedule's ideal one, by number of micro-batches."""
    lines = ["| micro-batches | samples/s | idle | ideal |", "| ---: | ---: | ---: | ---: |"]
    for m in (1, 2, 4, 8, 16):
        metrics = _run("pipeline", "strategy.partition=optimal", m=m)
        lines.append(
            f"| {m} | {metrics['samples_per_second']:,.0f} | {metrics['bubble_fraction']:.0%} | "
            f"{ideal_bubble('gpipe', 2, m):.0%} |"
        )
    return "\n".join(lines)


def _random_cuts(figures: dict[str, Any]) -> str:
    """Say how predicted and measured step times of random cuts correlate; add both to `figures`."""
    operations = _run()["cut"]["operations"]
    predicted, measured = [], []
    for boundary in sorted(random.Random(0).sample(range(1, operations), CUTS)):
        cut = {"boundaries": [boundary], "operations": operations}
        metrics = _run("pipeline", _cut_override(cut))
        predicted.append(metrics["cut"]["predicted_step_seconds"])
        measured.append(metrics["step_seconds_median"])
    figures |= {"predicted": predicted, "measured": measured}
    return (
        f"{CUTS} random cuts: predicted and measured step times correlate at "
        f"{correlation(predicted, measured):.3f} (goal 0.90)"
    )


def _memory_table() -> str:
    """Return a table of the largest stage's peak memory, measured and predicted.

    Four stages share two cores, which changes their speed but not their memory.
    """
    lines = ["| stages | recompute | peak of a stage | predicted |", "| ---: | --- | ---: | ---: |"]
    for stages, recompute in itertools.product((1, 2, 4), ("none", "except_last", "full")):
        words = (f"workers={stages}", f"strategy.recompute={recompute}", "hardware.share_devices=true")
        metrics = _run("pipeline", *words, "batch=512", f"dataset.limit={512 * 8}")
        predicted = max(stage["memory_bytes"] for stage in metrics["cut"]["stages"])
        lines.append(
            f"| {stages} | {recompute} | {metrics['memory_peak_bytes'] / 2**20:,.0f} MiB | "
            f"{predicted / 2**20:,.0f} MiB |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
