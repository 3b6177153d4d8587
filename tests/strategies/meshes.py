"""What tests of ranks on a mesh share: the words of a mesh, and the copies of a model that its ranks hold."""

from __future__ import annotations

from tests.strategies.parity import Outcome, joined


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
