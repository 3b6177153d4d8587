"""Compare ways to exchange gradients between two workers: `python -m bench.exchange`."""

from __future__ import annotations

import json
import sys
from collections import defaultdict

from bench import runs
from bench.compare import Comparison, ratios, table

MODEL, BATCH, STEPS = "resnet18", 128, 70
# The overrides of each contestant on the command line of `src.train`.
CONTESTANTS = {
    "ddp": ("strategy=ddp",),
    "ddp over gloo": ("strategy=ddp", "strategy.all_reduce=backend"),
    "mpi": ("strategy=mpi",),
    "parameter_server sync": ("strategy=parameter_server",),
    "parameter_server async": ("strategy=parameter_server", "strategy.mode=async"),
}
GOALS = {"mpi": 0.95}


def main() -> int:
    """Run the rounds and print the tables, which bench/out/ keeps with every figure behind them; return 0."""
    rounds = runs.parse_rounds("exchange", __doc__)
    rates: dict[str, list[float]] = defaultdict(list)
    payload: dict[str, float] = {}
    names = list(CONTESTANTS)
    for number in range(rounds):
        # Another one goes first in each round: what ran before leaves its mark on a shared machine.
        for name in names[number % len(names) :] + names[: number % len(names)]:
            words = (
                *CONTESTANTS[name],
                f"model={MODEL}",
                "workers=2",
                f"batch={BATCH}",
                "dataset.test_limit=1000",
            )
            out = runs.OUT / f"exchange-{name.replace(' ', '-')}"
            metrics = runs.train(*words, f"dataset.limit={BATCH * STEPS}", out=out)
            rates[name].append(metrics["samples_per_second"])
            payload[name] = metrics["payload_bytes"] / STEPS / 1e6
        last = ", ".join(f"{name} {values[-1]:,.0f}" for name, values in rates.items())
        print(f"exchange round {number + 1}: {last}", file=sys.stderr, flush=True)
    comparisons = [
        Comparison(f"{name} / ddp", ratios(rates[name], rates["ddp"]), GOALS.get(name)) for name in names[1:]
    ]
    comparisons.append(
        Comparison("parameter_server sync / mpi", ratios(rates["parameter_server sync"], rates["mpi"]), None)
    )
    moved = "\n".join(f"| {name} | {payload[name]:,.0f} |" for name in names)
    text = f"{table(comparisons)}\n\n| exchanged by | MB a step, all workers |\n| --- | --- |\n{moved}\n"
    (runs.OUT / "exchange.md").write_text(text)
    figures = {"samples_per_second": rates, "payload_megabytes_a_step": payload}
    (runs.OUT / "exchange.json").write_text(json.dumps(figures, indent=1))
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
