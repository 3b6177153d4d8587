"""Compare sweeps whose ranks are forked with sweeps whose ranks are spawned: `python -m bench.start`."""

from __future__ import annotations

import json
import sys
from statistics import median
from typing import Any

from bench import runs
from bench.compare import Comparison, ratios, table
from bench.rounds import Rounds

STRATEGIES = ("ddp", "tf_custom")
METHODS = ("forkserver", "spawn")
MODEL, BATCH, STEPS = "cnn", 128, 120
SEEDS = (0, 1, 2)
# Contestant (strategy, start method) -> the cells of each round's sweep.
Sweeps = dict[tuple[str, str], list[list[dict[str, Any]]]]


def main() -> int:
    """Run the rounds and print the tables, which bench/out/ keeps with every figure behind them; return 0."""
    rounds = runs.parse_rounds("start", __doc__)
    contestants = [(strategy, method) for strategy in STRATEGIES for method in METHODS]

    def measure(number: int) -> dict[tuple[str, str], list[dict[str, Any]]]:
        """Return the cells of each contestant's sweep."""
        cells_of = {}
        # Another one goes first in each round: what ran before leaves its mark on a shared machine.
        first = number % len(contestants)
        for strategy, method in contestants[first:] + contestants[:first]:
            words = (
                f"strategy={strategy}",
                f"hardware.start_method={method}",
                f"model={MODEL}",
                "workers=2",
                f"batch={BATCH}",
                f"dataset.limit={BATCH * STEPS}",
                "dataset.test_limit=1000",
            )
            cells = runs.sweep(*words, seeds=SEEDS, out=runs.OUT / f"start-{strategy}-{method}")
            started_by = {cell["environment"]["start_method"] for cell in cells}
            if started_by != {method}:
                raise RuntimeError(
                    f"{strategy}: ranks were started by {', '.join(started_by)}, not by {method}"
                )
            cells_of[strategy, method] = cells
        print(f"start round {number + 1}", file=sys.stderr, flush=True)
        return cells_of

    repeatable = Rounds()
    measured = repeatable.run(rounds, measure)
    sweeps: Sweeps = {each: [cells_of[each] for cells_of in measured] for each in contestants}
    text = f"{cost_table(sweeps)}\n\n{table(compare(sweeps))}\n\n{repeatable.note()}\n"
    (runs.OUT / "start.md").write_text(text)
    figures = [{"contestant": list(contestant), "sweeps": sweeps[contestant]} for contestant in contestants]
    (runs.OUT / "start.json").write_text(json.dumps(figures, indent=1))
    print(text)
    return 0


def overhead(cell: dict[str, Any]) -> float:
    """Return the seconds that a cell takes besides training, by its metrics."""
    return float(cell["total_seconds"] - cell["train_seconds"])


def cost_table(sweeps: Sweeps) -> str:
    """Return a Markdown table of the median seconds that first and later cells take besides training."""
    lines = ["| strategy | ranks | first cell | later cells |", "| --- | --- | --- | --- |"]
    for (strategy, method), rounds in sweeps.items():
        first = median(overhead(cells[0]) for cells in rounds)
        later = median(overhead(cell) for cells in rounds for cell in cells[1:])
        lines.append(f"| {strategy} | {method} | {first:.1f} s | {later:.1f} s |")
    return "\n".join(lines)


def compare(sweeps: Sweeps) -> list[Comparison]:
    """Return the ratios of forked to spawned ranks, a pair of sweeps a round, of each strategy."""
    comparisons = []
    for strategy in STRATEGIES:
        forked, spawned = (sweeps[strategy, method] for method in METHODS)
        for name, of_sweep in {
            "first cell besides training": lambda cells: overhead(cells[0]),
            "later cells besides training": lambda cells: median(map(overhead, cells[1:])),
            "samples/s": lambda cells: median(cell["samples_per_second"] for cell in cells),
        }.items():
            pairs = ratios([of_sweep(cells) for cells in forked], [of_sweep(cells) for cells in spawned])
            comparisons.append(Comparison(f"{strategy}: {name}, forked / spawned", pairs, None))
    return comparisons


if __name__ == "__main__":
    sys.exit(main())
