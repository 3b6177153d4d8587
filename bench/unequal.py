"""`python -m bench.unequal`: `batch_shares=auto` on devices of unequal speed, against what each trains alone.

The ideal is the sum of that, each device alone on the batch that is its share in proportion to the nominal
speeds. What a step takes is told apart: the faster rank's share, at its speed alone; how much longer that is
beside the other rank; and the exchange, in which it adds, and waits for the other one.
"""

from __future__ import annotations

import csv
import json
import sys
from collections import defaultdict
from dataclasses import asdict, dataclass, fields
from statistics import median

from bench import runs
from bench.compare import Comparison, ratios, table
from src.runtime.shares import apportion

MODEL, BATCH, STEPS = "resnet18", 256, 30
# By then `auto` must have settled, as after any change of load.
SETTLED = 50
SLOW = (0.5, 0.25)
GOAL = 0.90


@dataclass(frozen=True)
class Step:
    """A mean step: seconds, the faster rank's samples, and the parts that add up to those seconds."""

    seconds: float
    samples: float
    alone: float
    beside: float
    exchange: float


def breakdown(samples: float, seconds: float, busy: float, rate: float) -> Step:
    """Of a step in which the rank computes for `busy` seconds; alone it trains `rate` samples a second."""
    return Step(seconds, samples, samples / rate, busy - samples / rate, seconds - busy)


def trained(name: str, samples: int, *words: str, warmup: int = 5) -> tuple[float, float, float]:
    """Samples of rank 0 in a mean step after `warmup` of them, the step's seconds, and those it computes."""
    count = (warmup + STEPS) * samples
    further = (f"model={MODEL}", f"batch={samples}", "optimizer.lr=0.01", f"hardware.warmup_steps={warmup}")
    out = runs.OUT / f"unequal-{name}"
    runs.train(*words, *further, f"dataset.limit={count}", "dataset.test_limit=100", out=out)
    with (out / "workers.csv").open(newline="") as file:
        first = next(csv.DictReader(file))
    taken, seconds, busy = (float(first[column]) for column in ("samples", "seconds", "busy_seconds"))
    steps = int(first["steps"])
    return taken / steps, seconds / steps, busy / steps


def main() -> int:
    """Runs the rounds and prints the tables; every figure is kept in bench/out/unequal.json."""
    rounds = runs.rounds("unequal", __doc__)
    ideals: dict[str, list[float]] = defaultdict(list)
    steps: dict[str, list[Step]] = defaultdict(list)
    for number in range(rounds):
        for slow in SLOW:
            ratio = f"1:{1 / slow:g}"
            given = apportion(BATCH, [1.0, slow])
            rates = []
            for speed, share in zip((1.0, slow), given, strict=True):
                samples, seconds, _ = trained("alone", share, "strategy=single", f"hardware.speeds=[{speed}]")
                rates.append(samples / seconds)
            both = ("strategy=ddp", "workers=2", f"hardware.speeds=[1.0,{slow}]")
            given_words = f"batch_shares=[{given[0]},{given[1]}]"
            for name, words, warmup in (
                (f"auto {ratio}", "batch_shares=auto", SETTLED),
                (f"in proportion {ratio}", given_words, 5),
            ):
                found = trained("both", BATCH, *both, words, warmup=warmup)
                steps[name].append(breakdown(*found, rates[0]))
                ideals[name].append(BATCH / sum(rates))
        last = ", ".join(
            f"{name} {BATCH / found[-1].seconds:,.0f} samples/s" for name, found in steps.items()
        )
        print(f"unequal round {number + 1}: {last}", file=sys.stderr, flush=True)
    comparisons = [
        Comparison(
            f"{name} / ideal",
            ratios(ideals[name], [step.seconds for step in found]),
            GOAL if name.startswith("auto") else None,
        )
        for name, found in steps.items()
    ]
    whole = f"{table(comparisons)}\n\n{milliseconds(steps, ideals)}\n"
    (runs.OUT / "unequal.md").write_text(whole)
    kept = {name: [asdict(step) for step in found] for name, found in steps.items()}
    (runs.OUT / "unequal.json").write_text(json.dumps({"ideal_seconds": ideals, "steps": kept}, indent=1))
    print(whole)
    return 0


def milliseconds(steps: dict[str, list[Step]], ideals: dict[str, list[float]]) -> str:
    """The medians of each part, as a Markdown table."""
    lines = [
        "| ms of a step | ideal | measured | alone | slower beside the other | exchange | its samples |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, found in steps.items():
        part = {field.name: median(getattr(step, field.name) for step in found) for field in fields(Step)}
        shown = (median(ideals[name]), part["seconds"], part["alone"], part["beside"], part["exchange"])
        cells = " | ".join(f"{1000 * seconds:.0f}" for seconds in shown)
        lines.append(f"| {name} | {cells} | {part['samples']:.0f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
