"""Define into how many parts the workers of a run divide its training, along each axis."""

from __future__ import annotations

import math
from dataclasses import dataclass

from src.config.mistakes import ConfigError


@dataclass(frozen=True, kw_only=True)
class Degrees:
    """The number of parts along each axis; a worker has one part on each, so that the product is `workers`.

    Ranks are counted along `tensor` first, then `shard`, `data` and `pipeline`.

    Attributes:
        data: copies of the model, each of which sees its own part of every global batch.
        pipeline: stages of consecutive operations of the model, through which all samples pass.
        tensor: parts of each operation's tensors; their workers see the same samples.
        shard: shards of a copy's parameters and optimizer state, which its workers gather as they need
            them; each worker sees its own part of the batch.
    """

    data: int = 1
    pipeline: int = 1
    tensor: int = 1
    shard: int = 1

    @property
    def batch(self) -> int:
        """Return how many workers divide each global batch among them."""
        return self.data * self.shard

    def check(self, workers: int) -> None:
        """Raise `ConfigError` unless the degrees are those of so many workers."""
        factors = vars(self)
        product = math.prod(factors.values())
        if product != workers:
            raise ConfigError(
                f"workers={workers}: must be {' x '.join(factors)} = "
                f"{' x '.join(map(str, factors.values()))} = {product}"
            )
