"""Compare TensorFlow's strategies on two devices with plain scripts: `python -m bench.tensorflow`."""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import Any

from bench import runs
from bench.compare import Comparison, ratios, table
from bench.rounds import Rounds, collect

MODEL, BATCH, STEPS = "cnn", 128, 160
# Scaleguide's strategies, and the names by which the plain script knows them.
KINDS = {
    "tf_mirrored": "mirrored",
    "tf_custom": "custom",
    "tf_multiworker": "multiworker",
    "tf_mpi": "mpi",
    "tf_model_split": "split",
    "tf_parameter_server": "served",
}
# The cut that the plain script makes, too.
SPLIT = ("strategy.partition=[flatten]",)


def main() -> int:
    """Run the rounds and print the table, which bench/out/ keeps with every figure behind it; return 0."""
    rounds = runs.parse_rounds("tensorflow", __doc__)
    contestants: list[tuple[str, Any]] = [
        ("tf_single", partial(runs.run_scaleguide, "tf_single", MODEL, BATCH, STEPS)),
        *((name, partial(_run_strategy, name)) for name in KINDS),
        *((kind, partial(runs.run_tf_peer, kind, MODEL, BATCH, STEPS)) for kind in KINDS.values()),
    ]

    def measure(number: int) -> dict[str, tuple[float, float]]:
        """Return each contestant's samples/s and seconds of start-up, and the summed rate of two runs."""
        figures = {}
        # Another one goes first in each round: what ran before leaves its mark on a shared machine.
        first = number % len(contestants)
        for name, contestant in contestants[first:] + contestants[:first]:
            result = contestant()
            figures[name] = result.rate, result.startup
        figures["together"] = runs.summed_rate(MODEL, BATCH, STEPS, strategy="tf_single"), 0.0
        last = ", ".join(f"{name} {rate:,.0f}" for name, (rate, _) in figures.items())
        print(f"tensorflow round {number + 1}: {last}", file=sys.stderr, flush=True)
        return figures

    repeatable = Rounds()
    figures_by_name = collect(repeatable.run(rounds, measure))
    rates = {name: [rate for rate, _ in figures] for name, figures in figures_by_name.items()}
    startups = {
        name: [startup for _, startup in figures]
        for name, figures in figures_by_name.items()
        if name != "together"
    }
    comparisons = [
        *(Comparison(f"{n} / plain script", ratios(rates[n], rates[k]), 1.0) for n, k in KINDS.items()),
        *(Comparison(f"{n} / tf_single", ratios(rates[n], rates["tf_single"]), None) for n in KINDS),
        Comparison("capacity C(2)", ratios(rates["together"], rates["tf_single"]), None),
        Comparison("tf_custom / tf_mirrored", ratios(rates["tf_custom"], rates["tf_mirrored"]), None),
        *(
            Comparison(f"start-up, {n} / plain script", ratios(startups[n], startups[k]), None)
            for n, k in KINDS.items()
        ),
    ]
    text = f"{table(comparisons)}\n\n{repeatable.note()}"
    (runs.OUT / "tensorflow.md").write_text(text + "\n")
    figures = {"samples_per_second": rates, "startup_seconds": startups}
    (runs.OUT / "tensorflow.json").write_text(json.dumps(figures, indent=1))
    print(text)
    return 0


def _run_strategy(strategy: str) -> runs.Result:
    words = SPLIT if strategy == "tf_model_split" else ()
    return runs.run_scaleguide(strategy, MODEL, BATCH, STEPS, *words, workers=2)


if __name__ == "__main__":
    sys.exit(main())
