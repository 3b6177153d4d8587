"""What tests of ranks on a mesh share: the words of a mesh, and the copies of a model that its ranks hold."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping

from tests.strategies.parity import Outcome, joined

TEXT = ("dataset=gcide", "dataset.source=generated", "dataset.options.length=16", "batch=32")


def huggingface(architecture: str, sizes: Mapping[str, float], *words: str) -> tuple[str, ...]:
    """The words of a model of transformers."""
    options = (f"+model.options.{name}={size}" for name, size in sizes.items())
    return ("model=huggingface", f"model.architecture={architecture}", *options, *words)


LLAMA_SIZES = {
    "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 48,
    "num_attention_heads": 8, "num_key_value_heads": 8,
}  # fmt: skip
LLAMA = huggingface("LlamaForCausalLM", LLAMA_SIZES, *TEXT)
HAS_TRANSFORMERS = importlib.util.find_spec("transformers") is not None


def hybrid(pipeline: int = 1, shard: int = 1, tensor: int = 1, microbatches: int = 2) -> tuple[str, ...]:
    """Copies are what is left of the workers."""
    degrees = (f"strategy.pipeline={pipeline}", f"strategy.shard={shard}", f"strategy.tensor={tensor}")
    return (
        "strategy=hybrid",
        *degrees,
        f"microbatches={microbatches}",
        "strategy.group_mb=0.3",
        "strategy.partition=layers",
    )


def copies(outcomes: list[Outcome], words: tuple[str, ...], *, shared: str | None = None) -> list[Outcome]:
    """Each copy of the model, joined of its stages; ranks with shards have gathered it."""
    if "strategy.pipeline=2" not in words:
        return outcomes
    apart = len(outcomes) // 2
    return [joined(outcomes[copy::apart], shared=shared) for copy in range(apart)]
