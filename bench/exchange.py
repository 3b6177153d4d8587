"""Compare ways to exchange gradients between two workers: `python -m bench.exchange`."""

from __future__ import annotations

import json
import sys

from bench import runs
from bench.compare import Comparison, ratios, table
from bench.rounds import Rounds, collect

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
    names = list(CONTESTANTS)

    def measure(number: int) -> dict[str, tuple[float, float]]:
        """Return each contestant's samples/s, and the MB that it exchanges in a step."""
        figures = {}
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
            figures[name] = metrics["samples_per_second"], metrics["payload_bytes"] / STEPS / 1e6
        last = ", ".join(f"{name} {figures[name][0]:,.0f}" for name in names)
        print(f"exchange round {number + 1}: {last}", file=sys.stderr, flush=True)
        return figures

    repeatable = Rounds()
    figures_by_name = collect(repeatable.run(rounds, measure))
    rates = {name: [rate for rate, _ in figures] for name, figures in figures_by_name.items()}
    payload = {name: figures[-1][1] for name, figures in figures_by_name.items()}
    comparisons = [
        Comparison(f"{name} / ddp", ratios(rates[name], rates["ddp"]), GOALS.get(name)) for name in names[1:]
    ]
    comparisons.append(
        Comparison("parameter_server sync / mpi", ratios(rates["parameter_server sync"], rates["mpi"]), None)
    )
    moved = "\n".join(f"| {name} | {payload[name]:,.0f} |" for name in names)
    payloads = f"| exchanged by | MB a step, all workers |\n| --- | --- |\n{moved}"
    text = f"{table(comparisons)}\n\n{payloads}\n\n{repeatable.note()}\n"
    (runs.OUT / "exchange.md").write_text(text)
    figures = {"samples_per_second": rates, "payload_megabytes_a_step": payload}
    (runs.OUT / "exchange.json").write_text(json.dumps(figures, indent=1))
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
