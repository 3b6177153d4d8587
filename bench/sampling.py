"""Measure what the trace of the hardware costs: `python -m bench.sampling`.

Runs with the default trace and without one alternate. Beside the ratio of their speeds stands what the
sampler's thread has used of a core, by its own clock: a cost below the noise of the ratio shows there alone.
"""

from __future__ import annotations

import json
import sys
from statistics import median

from bench import runs
from bench.compare import Comparison, ratios, table
from bench.rounds import Rounds, collect

MODEL, BATCH, STEPS = "cnn", 128, 460
# Never, within a run.
OFF = "hardware.sample_seconds=10000"
# By name, the overrides of each contestant. Emulated hosts have more interfaces to be read.
CONTESTANTS = {
    "ddp": ("strategy=ddp",),
    "ddp without a trace": ("strategy=ddp", OFF),
    "ddp on a LAN": ("strategy=ddp", "hardware=lan"),
    "ddp on a LAN without a trace": ("strategy=ddp", "hardware=lan", OFF),
}
GOAL = 0.99


def main() -> int:
    """Run the rounds and print the table, which bench/out/ keeps with every figure behind it; return 0."""
    rounds = runs.parse_rounds("sampling", __doc__)
    names = list(CONTESTANTS)

    def measure(number: int) -> dict[str, tuple[float, float]]:
        """Return each contestant's samples/s, and the share of a core that its sampler used."""
        figures = {}
        for name in names[number % len(names) :] + names[: number % len(names)]:
            out = runs.OUT / f"sampling-{name.replace(' ', '-')}"
            words = (*CONTESTANTS[name], f"model={MODEL}", "workers=2", f"batch={BATCH}")
            metrics = runs.train(*words, "dataset.test_limit=1000", f"dataset.limit={BATCH * STEPS}", out=out)
            used = json.loads((out / "environment.json").read_text())["sampler"]
            figures[name] = metrics["samples_per_second"], used["cpu_seconds"] / used["seconds"]
        print(f"sampling round {number + 1}: {figures}", file=sys.stderr, flush=True)
        return figures

    repeatable = Rounds()
    figures = collect(repeatable.run(rounds, measure))
    rates = {name: [rate for rate, _ in each] for name, each in figures.items()}
    shares = {name: [share for _, share in each] for name, each in figures.items()}
    comparisons = [
        Comparison(f"{name} / without a trace", ratios(rates[name], rates[f"{name} without a trace"]), GOAL)
        for name in names[::2]
    ]
    used = "\n".join(
        f"| {name} | {median(shares[name]):.2%} | {max(shares[name]):.2%} |" for name in names[::2]
    )
    cores = f"| the sampler's share of a core | median | most |\n| --- | ---: | ---: |\n{used}"
    text = f"{table(comparisons)}\n\n{cores}\n\n{repeatable.note()}\n"
    (runs.OUT / "sampling.md").write_text(text)
    (runs.OUT / "sampling.json").write_text(
        json.dumps({"samples_per_second": rates, "share_of_a_core": shares}, indent=1)
    )
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
