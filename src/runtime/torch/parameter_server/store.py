"""Define a parameter store: where an asynchronous training's parameters stand, as the coordinator sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from src.measure.rank_record import RankRecord


class ParameterStore(Protocol):
    """Parameters that workers update, with the state of their optimizer (as MXNet's KVStore).

    Attributes:
        welcome: named figures that each worker needs of the store, sent to it when it connects.
    """

    welcome: Mapping[str, Any]

    def initialize(self, values: Tensor, entries: Mapping[str, Tensor]) -> None:
        """Set the initial values [elements], and the optimizer's entries by name, [elements] or []."""

    def applied(self) -> list[tuple[int, int]]:
        """Return (work item, staleness) of each step that took effect since the last call of this method.

        Steps whose staleness the workers report themselves are left out.
        """

    def rest(self, ranks: Sequence[int]) -> None:
        """Let no worker wait for the workers `ranks`, which have nothing left to do, until the next drain."""

    def drain(self) -> None:
        """Apply all pending pushes."""

    def state(self) -> tuple[Tensor, dict[str, Tensor], RankRecord]:
        """Return the values [elements], the optimizer's entries by name, and facts for the record."""

    def close(self) -> None:
        """Close the store; no method is called after that."""
