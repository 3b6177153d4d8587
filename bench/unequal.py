"""Compare `batch_shares=auto` on devices of unequal speed with its ideal: `python -m bench.unequal`.

The ideal rate is the sum of what each device reaches alone, on a batch as large as its share in proportion to
the nominal speeds. The seconds of a step are divided, for the faster rank, into those that its share takes at
its speed alone, those that computing takes longer beside the other rank, and the exchange, in which the rank
sums gradients and waits for the other one.
"""

from __future__ import annotations

import csv
import json
import sys
from dataclasses import asdict, dataclass, fields
from statistics import median

from bench import runs
from bench.compare import Comparison, ratios, table
from bench.rounds import Rounds, collect
from src.config.batch_shares import apportion

MODEL, BATCH, STEPS = "resnet18", 256, 30
# Steps after which the shares under `auto` must have settled, as after any change of load.
SETTLED = 50
SLOW = (0.5, 0.25)
GOAL = 0.90


@dataclass(frozen=True)
class Step:
    """The mean step of the faster rank, and the parts that its seconds are divided into.

    Attributes:
        seconds: the whole step; `alone`, `beside` and `exchange` add up to it.
        samples: samples of the faster rank.
        alone: seconds that these samples take where the rank runs alone.
        beside: seconds that they take longer beside the other rank.
        exchange: seconds in which the rank exchanges gradients, waiting included.
    """

    seconds: float
    samples: float
    alone: float
    beside: float
    exchange: float


def breakdown(samples: float, seconds: float, busy: float, rate: float) -> Step:
    """Divide the `seconds` of a rank's step on `samples` samples into their parts.

    The rank computes for `busy` of these seconds, and trains `rate` samples/s where it runs alone.
    """
    return Step(seconds, samples, samples / rate, busy - samples / rate, seconds - busy)


def mean_step(name: str, batch: int, *words: str, warmup: int = 5) -> tuple[float, float, float]:
    """Train `STEPS` steps after `warmup` others; return the measures of rank 0's mean step.

    Args:
        name: names the run's directory.
        batch: the global batch, in samples.
        words: further overrides of the command line.
        warmup: steps that are left out.

    Returns:
        Rank 0's samples, the step's seconds, and those of them in which rank 0 computes.
    """
    count = (warmup + STEPS) * batch
    further = (f"model={MODEL}", f"batch={batch}", "optimizer.lr=0.01", f"hardware.warmup_steps={warmup}")
    out = runs.OUT / f"unequal-{name}"
    runs.train(*words, *further, f"dataset.limit={count}", "dataset.test_limit=100", out=out)
    with (out / "workers.csv").open(newline="") as file:
        first = next(csv.DictReader(file))
    samples, seconds, busy = (float(first[column]) for column in ("samples", "seconds", "busy_seconds"))
    steps = int(first["steps"])
    return samples / steps, seconds / steps, busy / steps


def main() -> int:
    """Run the rounds and print the tables, which bench/out/ keeps with every figure behind them; return 0."""
    rounds = runs.parse_rounds("unequal", __doc__)

    def measure(number: int) -> dict[str, tuple[Step, float]]:
        """Return each contestant's mean step, and the ideal seconds of one."""
        measured = {}
        for slow in SLOW:
            ratio = f"1:{1 / slow:g}"
            shares = apportion(BATCH, [1.0, slow])
            rates = []
            for speed, share in zip((1.0, slow), shares, strict=True):
                samples, seconds, _ = mean_step(
                    "alone", share, "strategy=single", f"hardware.speeds=[{speed}]"
                )
                rates.append(samples / seconds)
            both = ("strategy=ddp", "workers=2", f"hardware.speeds=[1.0,{slow}]")
            proportional = f"batch_shares=[{shares[0]},{shares[1]}]"
            for name, words, warmup in (
                (f"auto {ratio}", "batch_shares=auto", SETTLED),
                (f"in proportion {ratio}", proportional, 5),
            ):
                measures = mean_step("both", BATCH, *both, words, warmup=warmup)
                measured[name] = breakdown(*measures, rates[0]), BATCH / sum(rates)
        last = ", ".join(
            f"{name} {BATCH / step.seconds:,.0f} samples/s" for name, (step, _) in measured.items()
        )
        print(f"unequal round {number + 1}: {last}", file=sys.stderr, flush=True)
        return measured

    repeatable = Rounds()
    figures = collect(repeatable.run(rounds, measure))
    steps = {name: [step for step, _ in pairs] for name, pairs in figures.items()}
    ideals = {name: [ideal for _, ideal in pairs] for name, pairs in figures.items()}
    comparisons = [
        Comparison(
            f"{name} / ideal",
            ratios(ideals[name], [step.seconds for step in steps_by_round]),
            GOAL if name.startswith("auto") else None,
        )
        for name, steps_by_round in steps.items()
    ]
    text = f"{table(comparisons)}\n\n{milliseconds(steps, ideals)}\n\n{repeatable.note()}\n"
    (runs.OUT / "unequal.md").write_text(text)
    parts = {name: [asdict(step) for step in steps_by_round] for name, steps_by_round in steps.items()}
    (runs.OUT / "unequal.json").write_text(json.dumps({"ideal_seconds": ideals, "steps": parts}, indent=1))
    print(text)
    return 0


def milliseconds(steps: dict[str, list[Step]], ideals: dict[str, list[float]]) -> str:
    """Return a Markdown table of the median parts of a step, in milliseconds.

    Args:
        steps: the steps of all rounds, by contestant.
        ideals: the ideal seconds of a step in all rounds, by contestant.
    """
    lines = [
        "| ms of a step | ideal | measured | alone | slower beside the other | exchange | its samples |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, steps_by_round in steps.items():
        part = {
            field.name: median(getattr(step, field.name) for step in steps_by_round) for field in fields(Step)
        }
        columns = (median(ideals[name]), part["seconds"], part["alone"], part["beside"], part["exchange"])
        cells = " | ".join(f"{1000 * seconds:.0f}" for seconds in columns)
        lines.append(f"| {name} | {cells} | {part['samples']:.0f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
