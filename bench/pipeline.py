"""`python -m bench.pipeline`: how near a pipeline of two stages comes to its ideal step.

The ideal step of a cut is (m - 1) max t + sum t + the slowest optimizer step, t being a stage's forward and
backward pass of one micro-batch. t is measured where the other stage is idle: under `model_split` with the
same cut and the same micro-batches. Both stages working at once is limited by the machine: C(2) / 2.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
from collections import defaultdict
from functools import partial
from pathlib import Path
from statistics import correlation, median
from typing import Any

from bench import runs
from bench.compare import Comparison, ratios, table
from src.measure.arithmetic import ideal_bubble, ideal_step_seconds

MODEL, BATCH, MICROBATCHES, STEPS = "resnet18", 128, 8, 56
# Where the plain script cuts.
BY_HAND = "[layer3]"
METHODS = ("optimal", "time", "size", "layers")
CUTS = 10


def main() -> int:
    """Runs the rounds and prints the tables; every figure is kept in bench/out/pipeline.json."""
    rounds = runs.rounds("pipeline", __doc__)
    comparisons, figures = _against_ideal(rounds)
    text = [table(comparisons), _bubbles(), _random_cuts(figures), _memory()]
    Path("bench/out/pipeline.md").write_text("\n\n".join(text) + "\n")
    Path("bench/out/pipeline.json").write_text(json.dumps(figures, indent=1))
    print("\n\n".join(text))
    return 0


def _run(strategy: str = "pipeline", *words: str, m: int = MICROBATCHES) -> dict[str, Any]:
    """Metrics of one run, with its cut and its timeline."""
    out = runs.OUT / f"{strategy}-{MODEL}"
    return runs.train(
        *(f"strategy={strategy}", "workers=2", f"model={MODEL}", f"batch={BATCH}", f"microbatches={m}"),
        *(f"dataset.limit={BATCH * STEPS}", *words),
        out=out,
    )


def ideal(split: dict[str, Any]) -> float:
    """The ideal step of a run under `model_split`, from what its stages took alone."""
    passes: dict[tuple[int, int, int], float] = defaultdict(float)
    updates: dict[int, list[float]] = defaultdict(list)
    for event in split["timeline"]:
        seconds, where = event["dur"] / 1e6, event["args"]
        if event["cat"] in ("forward", "loss", "backward"):
            passes[event["pid"], where["step"], where["microbatch"]] += seconds
        elif event["cat"] == "optimizer":
            updates[event["pid"]].append(seconds)
    stages = sorted(updates)
    taken = [median(value for (pid, _, _), value in passes.items() if pid == stage) for stage in stages]
    return ideal_step_seconds(taken, split["microbatches"], max(median(updates[stage]) for stage in stages))


def _against_ideal(count: int) -> tuple[list[Comparison], dict[str, Any]]:
    contestants = [*(partial(_method, method) for method in METHODS), _by_hand, _plain_script, _alone]
    rates: dict[str, list[float]] = defaultdict(list)
    for number in range(count):
        # Another one goes first in each round: what ran before leaves its mark on a shared machine.
        first = number % len(contestants)
        for contestant in contestants[first:] + contestants[:first]:
            for name, rate in contestant().items():
                rates[name].append(rate)
        last = ", ".join(f"{name} {values[-1]:.4g}" for name, values in rates.items())
        print(f"pipeline round {number + 1}: {last}", file=sys.stderr, flush=True)
    reachable = [a * b for a, b in zip(rates["ideal"], rates["half of C(2)"], strict=True)]
    comparisons = [
        Comparison("pipeline / (its ideal x C(2)/2)", ratios(rates["optimal"], reachable), 0.90),
        Comparison("pipeline / plain script, same cut", ratios(rates["by hand"], rates["plain script"]), 1.0),
        *(Comparison(f"optimal / {m}", ratios(rates["optimal"], rates[m]), 1.0) for m in METHODS[1:]),
        Comparison("pipeline / single", ratios(rates["optimal"], rates["single"]), None),
    ]
    return comparisons, dict(rates)


def _method(method: str) -> dict[str, float]:
    found = _run("pipeline", f"strategy.partition={method}")
    rates = {method: found["samples_per_second"]}
    if method == "optimal":
        rates["ideal"] = BATCH / ideal(_run("model_split", _given(found["cut"])))
    return rates


def _by_hand() -> dict[str, float]:
    return {"by hand": _run("pipeline", f"strategy.partition={BY_HAND}")["samples_per_second"]}


def _plain_script() -> dict[str, float]:
    return {"plain script": runs.peer("torch_pipeline.py", MODEL, BATCH, STEPS, workers=2).rate}


def _alone() -> dict[str, float]:
    rate = runs.ours("single", MODEL, BATCH, STEPS).rate
    return {"single": rate, "half of C(2)": runs.together(MODEL, BATCH, STEPS) / rate / 2}


def _given(cut: dict[str, Any]) -> str:
    """The override that asks for this cut in two."""
    place = cut["boundaries"][0]
    return f"strategy.partition=[{place},{cut['operations'] - place}]"


def _bubbles() -> str:
    """Measured idle share beside the schedule's own."""
    lines = ["| micro-batches | samples/s | idle | ideal |", "| ---: | ---: | ---: | ---: |"]
    for m in (1, 2, 4, 8, 16):
        found = _run("pipeline", "strategy.partition=optimal", m=m)
        lines.append(
            f"| {m} | {found['samples_per_second']:,.0f} | {found['bubble_fraction']:.0%} | "
            f"{ideal_bubble('gpipe', 2, m):.0%} |"
        )
    return "\n".join(lines)


def _random_cuts(figures: dict[str, Any]) -> str:
    """Whether a step's predicted time says how long it takes."""
    operations = _run()["cut"]["operations"]
    predicted, measured = [], []
    for place in sorted(random.Random(0).sample(range(1, operations), CUTS)):
        found = _run("pipeline", _given({"boundaries": [place], "operations": operations}))
        predicted.append(found["cut"]["predicted_step_seconds"])
        measured.append(found["step_seconds_median"])
    figures |= {"predicted": predicted, "measured": measured}
    return (
        f"{CUTS} random cuts: predicted and measured step times correlate at "
        f"{correlation(predicted, measured):.3f} (goal 0.90)"
    )


def _memory() -> str:
    """Measured peak of the largest stage; four stages share two cores, which memory doesn't mind."""
    lines = ["| stages | checkpoint | peak of a stage | predicted |", "| ---: | --- | ---: | ---: |"]
    for stages, checkpoint in itertools.product((1, 2, 4), ("never", "except_last", "always")):
        words = (f"workers={stages}", f"strategy.checkpoint={checkpoint}", "hardware.share_devices=true")
        found = _run("pipeline", *words, "batch=512", f"dataset.limit={512 * 8}")
        predicted = max(stage["memory_bytes"] for stage in found["cut"]["stages"])
        lines.append(
            f"| {stages} | {checkpoint} | {found['memory_peak_bytes'] / 2**20:,.0f} MiB | "
            f"{predicted / 2**20:,.0f} MiB |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
