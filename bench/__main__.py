"""Compare Scaleguide's speed with that of plain scripts: `make bench`, or `python -m bench`.

Each round runs every contestant once, in turn, on pinned cores. A comparison is the median over all rounds
of the ratio of two contestants' rates within one round. The capacity C(2) is the summed rate of two `single`
runs at once over the rate of one alone.
"""

from __future__ import annotations

import argparse
import json
import sys

from bench import runs
from bench.compare import Comparison, ratios, table
from bench.rounds import Rounds, collect
from src.machine.devices import usable_cores
from src.measure.arithmetic import capacity

STEPS = {"cnn": 160, "resnet18": 56}
BATCH = 128
# Batches of the curve; BATCH itself stands in the table.
CURVE = (32, 64, 256)
Rates = dict[str, list[float]]


def main() -> int:
    """Run the rounds and print their table; return the exit status, 2 on fewer than two cores.

    The table is written to bench/out/ too, as `results` or `curve`: Markdown, and JSON with every figure.
    """
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--models", default="cnn,resnet18")
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--curve", action="store_true", help="instead: two workers over the batch")
    args = parser.parse_args()
    if len(usable_cores()) < 2:
        print("two cores are needed", file=sys.stderr)
        return 2
    runs.OUT.mkdir(parents=True, exist_ok=True)
    models = args.models.split(",")
    rounds = Rounds()
    measure = _measure_curve if args.curve else _measure_table
    comparisons, figures = measure(models, args.batch, args.rounds, rounds)
    text, name = f"{table(comparisons)}\n\n{rounds.note()}", "curve" if args.curve else "results"
    (runs.OUT / f"{name}.md").write_text(text + "\n")
    (runs.OUT / f"{name}.json").write_text(json.dumps(figures, indent=1))
    print(text)
    return 0


def _measure_table(
    models: list[str], batch: int, count: int, rounds: Rounds
) -> tuple[list[Comparison], dict[str, Rates]]:
    """Run every contestant with each model at one batch; return the comparisons, and the rates by model."""
    comparisons: list[Comparison] = []
    figures: dict[str, Rates] = {}
    for model in models:
        figures[model] = _run_rounds(model, batch, count, rounds)
        comparisons += _compare(model, figures[model])
        print(table(comparisons), flush=True)
    return comparisons, figures


def _measure_curve(
    models: list[str], _: int, count: int, rounds: Rounds
) -> tuple[list[Comparison], dict[str, Rates]]:
    """Run two `ddp` workers at each batch of `CURVE`; return comparisons, and rates by model and batch.

    The second argument, `_measure_table`'s batch, isn't used.
    """
    comparisons: list[Comparison] = []
    figures: dict[str, Rates] = {}
    for model in models:
        for batch in CURVE:
            rates = figures[f"{model} batch {batch}"] = _run_scaling_rounds(model, batch, count, rounds)
            comparisons.append(_against_capacity(f"{model}, batch {batch}", rates, None))
            print(table(comparisons[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    return comparisons, figures


def _run_rounds(model: str, batch: int, count: int, rounds: Rounds) -> Rates:
    contestants = {
        "single": lambda: runs.run_scaleguide("single", model, batch, STEPS[model]),
        "DataLoader loop": lambda: runs.run_peer("torch_dataloader.py", model, batch, STEPS[model]),
        "in-memory loop": lambda: runs.run_peer("torch_memory.py", model, batch, STEPS[model]),
        "ddp": lambda: runs.run_scaleguide("ddp", model, batch, STEPS[model], workers=2),
        "plain DDP": lambda: runs.run_peer("torch_ddp.py", model, batch, STEPS[model], workers=2),
    }
    if model == "cnn":
        contestants["tf_single"] = lambda: runs.run_scaleguide("tf_single", model, batch, STEPS[model])
        contestants["model.fit"] = lambda: runs.run_peer("tf_fit.py", model, batch, STEPS[model])

    def measure(number: int) -> dict[str, float]:
        """Run each contestant once, in turn; return rates and start-ups by name."""
        figures: dict[str, float] = {}
        for name, contestant in contestants.items():
            result = contestant()
            figures[name], figures[f"{name} start-up"] = result.rate, result.startup
            print(f"{model} round {number + 1}: {name} {result.rate:,.0f} samples/s", file=sys.stderr)
        return {**figures, "together": runs.summed_rate(model, batch, STEPS[model])}

    return collect(rounds.run(count, measure))


def _run_scaling_rounds(model: str, batch: int, count: int, rounds: Rounds) -> Rates:
    steps = max(56, STEPS[model] * BATCH // batch // 2)

    def measure(number: int) -> dict[str, float]:
        """Return the rates of one and two workers, and of two independent runs."""
        return {
            "single": runs.run_scaleguide("single", model, batch, steps).rate,
            "ddp": runs.run_scaleguide("ddp", model, batch, steps, workers=2).rate,
            "together": runs.summed_rate(model, batch, steps),
        }

    return collect(rounds.run(count, measure))


def _compare(model: str, rates: Rates) -> list[Comparison]:
    def pair(numerator: str, denominator: str, goal: float) -> Comparison:
        return Comparison(
            f"{model}: {numerator} / {denominator}", ratios(rates[numerator], rates[denominator]), goal
        )

    comparisons = [
        pair("single", "DataLoader loop", 1.1),
        pair("single", "in-memory loop", 1.0),
        pair("ddp", "plain DDP", 1.0),
        Comparison(
            f"{model}: capacity C(2)",
            tuple(capacity(a, [b]) for a, b in zip(rates["single"], rates["together"], strict=True)),
            None,
        ),
        _against_capacity(model, rates, 0.85),
        pair("in-memory loop start-up", "single start-up", 1 / 1.5),
        pair("plain DDP start-up", "ddp start-up", 1 / 1.5),
    ]
    if "model.fit" in rates:
        comparisons += [
            pair("tf_single", "model.fit", 1.0),
            pair("model.fit start-up", "tf_single start-up", 1 / 1.5),
        ]
    return comparisons


def _against_capacity(label: str, rates: Rates, goal: float | None) -> Comparison:
    return Comparison(f"{label}: ddp on 2 / C(2)", ratios(rates["ddp"], rates["together"]), goal)


if __name__ == "__main__":
    sys.exit(main())
