"""Compare sharded and hybrid training with plain scripts and simpler strategies: `python -m bench.mesh`.

Each round runs every contestant once, in turn. A comparison is the median over all rounds of the ratio of
two contestants' rates within one round.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

from bench import runs
from bench.compare import Comparison, ratios, table
from bench.rounds import Rounds, collect

STEPS, BATCH = {"cnn": 160, "resnet18": 56}, 128
# The overrides of each contestant on the command line of `src.train`, after its strategy.
CONTESTANTS = {
    "fsdp": ("fsdp",),
    "ddp over the backend": ("ddp", "strategy.all_reduce=backend"),
    "hybrid data=2": ("hybrid", "strategy.data=2", "microbatches=1"),
    "pipeline": ("pipeline",),
    "hybrid pipeline=2": ("hybrid", "strategy.pipeline=2"),
}
PLAIN = "plain fully_shard"
PAIRS = (
    ("fsdp", PLAIN, 0.95),
    ("hybrid data=2", "ddp over the backend", 0.98),
    ("hybrid pipeline=2", "pipeline", 0.98),
)


def main() -> int:
    """Run the rounds and print the table, which bench/out/ keeps with every figure behind it; return 0."""
    count, repeatable = runs.parse_rounds("mesh", __doc__), Rounds()
    comparisons: list[Comparison] = []
    figures: dict[str, dict[str, list[float]]] = {}
    for model, steps in STEPS.items():
        rates = figures[model] = collect(repeatable.run(count, _measure(model, steps)))
        comparisons += [
            Comparison(f"{model}: {one} / {other}", ratios(rates[one], rates[other]), goal)
            for one, other, goal in PAIRS
        ]
    text = f"{table(comparisons)}\n\n{repeatable.note()}\n"
    (runs.OUT / "mesh.md").write_text(text)
    (runs.OUT / "mesh.json").write_text(json.dumps(figures, indent=1))
    print(text)
    return 0


def _measure(model: str, steps: int) -> Callable[[int], dict[str, float]]:
    """Return what runs each contestant once, and returns their samples/s."""
    contestants: dict[str, Callable[[], runs.Result]] = {
        name: _scaleguide(model, steps, *words) for name, words in CONTESTANTS.items()
    }
    contestants[PLAIN] = lambda: runs.run_peer("torch_fsdp.py", model, BATCH, steps, workers=2)
    names = list(contestants)

    def measure(number: int) -> dict[str, float]:
        # Another one goes first in each round: what ran before leaves its mark on a shared machine.
        turn = number % len(names)
        rates = {name: contestants[name]().rate for name in names[turn:] + names[:turn]}
        shown = ", ".join(f"{name} {rates[name]:,.0f}" for name in names)
        print(f"{model} round {number + 1}: {shown}", file=sys.stderr, flush=True)
        return rates

    return measure


def _scaleguide(model: str, steps: int, strategy: str, *words: str) -> Callable[[], runs.Result]:
    return lambda: runs.run_scaleguide(
        strategy, model, BATCH, steps, *words, "dataset.test_limit=1000", workers=2
    )


if __name__ == "__main__":
    sys.exit(main())
