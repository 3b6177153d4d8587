"""Define the options by which gradients are compressed."""

from __future__ import annotations

from dataclasses import dataclass

from src.config.run_config import StrategyOptions


@dataclass(frozen=True, kw_only=True)
class Compression(StrategyOptions):
    """How gradients are compressed; those of a strategy without these options aren't.

    Attributes:
        compression: `none`, `fp16`, `bf16`, `powersgd` or `topk`.
        compression_rank: the rank of powersgd's matrices.
        compression_ratio: the share of a tensor's elements that topk sends.
    """

    compression: str = "none"
    compression_rank: int = 0
    compression_ratio: float = 0.0

    @property
    def compresses(self) -> bool:
        """Return whether less is sent than whole gradients."""
        return self.compression != "none"
