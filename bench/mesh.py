"""Compare sharded, split and hybrid training with plain scripts and strategies: `python -m bench.mesh`.

The model whose layers are split is left out where there is no transformers. Each round runs every contestant
once, in turn. A comparison is the median over all rounds of the ratio of two contestants' rates within one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec

from bench import runs
from bench.compare import Comparison, ratios, table
from bench.rounds import Rounds, collect

# The CNN trains for nine seconds: over three, the ratio of two strategies that compute the same by the same
# code was between 0.90 and 1.13.
STEPS, BATCH = {"cnn": 440, "resnet18": 56}, 128
# The strategy of each contestant, and overrides of the command line of `src.train`.
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
# The model of bench/peers/torch_tensor_parallel.py.
LLAMA = (
    "model.architecture=LlamaForCausalLM",
    "+model.options.num_hidden_layers=4",
    "+model.options.hidden_size=256",
    "+model.options.intermediate_size=512",
    "+model.options.num_attention_heads=4",
    "+model.options.num_key_value_heads=4",
    "dataset=gcide",
    "dataset.source=generated",
)
LLAMA_STEPS, LLAMA_BATCH = 60, 8
SPLIT, PLAIN_SPLIT = "tensor_parallel", "plain parallelize_module"
Contestants = dict[str, Callable[[], runs.Result]]


def main() -> int:
    """Run the rounds and print the table, which bench/out/ keeps with every figure behind it; return 0."""
    count, repeatable = runs.parse_rounds("mesh", __doc__), Rounds()
    comparisons: list[Comparison] = []
    figures: dict[str, dict[str, list[float]]] = {}

    def compare(model: str, contestants: Contestants, pairs: Sequence[tuple[str, str, float]]) -> None:
        rates = figures[model] = collect(repeatable.run(count, _measure(model, contestants)))
        comparisons.extend(
            Comparison(f"{model}: {one} / {other}", ratios(rates[one], rates[other]), goal)
            for one, other, goal in pairs
        )

    for model, steps in STEPS.items():
        compare(model, _contestants(model, steps), PAIRS)
    if find_spec("transformers"):
        compare("llama", _split_contestants(), [(SPLIT, PLAIN_SPLIT, 0.95)])
    else:
        print("llama: left out, for transformers isn't installed", file=sys.stderr)
    text = f"{table(comparisons)}\n\n{repeatable.note()}\n"
    (runs.OUT / "mesh.md").write_text(text)
    (runs.OUT / "mesh.json").write_text(json.dumps(figures, indent=1))
    print(text)
    return 0


def _contestants(model: str, steps: int) -> Contestants:
    """Return what runs each contestant of a model once."""
    contestants: Contestants = {
        name: _scaleguide(strategy, model, BATCH, steps, *words, "dataset.test_limit=1000")
        for name, (strategy, *words) in CONTESTANTS.items()
    }
    contestants[PLAIN] = lambda: runs.run_peer("torch_fsdp.py", model, BATCH, steps, workers=2)
    return contestants


def _split_contestants() -> Contestants:
    """Return what trains the Llama once by our tensor parallelism, and by a plain script's."""
    return {
        SPLIT: _scaleguide(SPLIT, "huggingface", LLAMA_BATCH, LLAMA_STEPS, *LLAMA, "dataset.test_limit=32"),
        PLAIN_SPLIT: lambda: runs.run_peer(
            "torch_tensor_parallel.py", "llama", LLAMA_BATCH, LLAMA_STEPS, workers=2
        ),
    }


def _measure(model: str, contestants: Contestants) -> Callable[[int], dict[str, float]]:
    """Return what runs each contestant once, and returns their samples/s."""
    names = list(contestants)

    def measure(number: int) -> dict[str, float]:
        # Another one goes first in each round, and each second round runs the other way round: what ran
        # before leaves its mark on a shared machine.
        turn = number % len(names)
        order = names[turn:] + names[:turn]
        rates = {name: contestants[name]().rate for name in (order[::-1] if number % 2 else order)}
        shown = ", ".join(f"{name} {rates[name]:,.0f}" for name in names)
        print(f"{model} round {number + 1}: {shown}", file=sys.stderr, flush=True)
        return rates

    return measure


def _scaleguide(strategy: str, model: str, batch: int, steps: int, *words: str) -> Callable[[], runs.Result]:
    return lambda: runs.run_scaleguide(strategy, model, batch, steps, *words, workers=2)


if __name__ == "__main__":
    sys.exit(main())
