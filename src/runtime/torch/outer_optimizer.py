"""Take an outer optimizer's step from where all ranks were to where they are on average.

Ranks begin at the same parameters x, train on their own for some steps, and average what they have, y. Local
SGD goes on from y. An outer optimizer takes x - y for a gradient:

    slowmo    u <- m u + (x - y) / r;  x <- x - a r u              Wang 2020, algorithm 1
    diloco    u <- m u + (x - y);      x <- x - a (x - y + m u)    Douillard 2023, algorithm 1, by Nesterov

with the rate a and the momentum m, and r, the rate of the ranks' steps. Every rank keeps x and u, which are
the same everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from src.compat.live_tensors import exchanged

# The papers' own rate and momentum, where the configuration has none.
DEFAULTS = {"slowmo": (1.0, 0.7), "diloco": (0.7, 0.9)}


@dataclass
class OuterOptimizer:
    """The state of an outer optimizer.

    Attributes:
        name: `slowmo` or `diloco`.
        rate: its learning rate a.
        momentum: its momentum m.
        start: where all ranks were last [elements].
    """

    name: str
    rate: float
    momentum: float
    start: Tensor

    def __post_init__(self) -> None:
        self._velocity = torch.zeros_like(self.start)

    @classmethod
    def of(cls, options: Mapping[str, Any], start: Tensor) -> OuterOptimizer | None:
        """Make the optimizer that the strategy's `options` describe; `None` for plain averages.

        `start` are the parameters [elements] at which all ranks begin; they are kept, and changed.
        """
        if options["outer"] == "none":
            return None
        rate, momentum = DEFAULTS[options["outer"]]
        rate = rate if options["outer_lr"] is None else options["outer_lr"]
        momentum = momentum if options["outer_momentum"] is None else options["outer_momentum"]
        return cls(options["outer"], rate, momentum, start)

    @torch.no_grad()
    def step(self, average: Tensor, inner_rate: float) -> Tensor:
        """Return the parameters [elements] at which all ranks go on.

        Args:
            average: the mean of what the ranks have [elements].
            inner_rate: the learning rate of their last step.
        """
        change = self.start - average
        exchanged(change)
        if self.name == "slowmo":
            self._velocity.mul_(self.momentum).add_(change, alpha=1 / inner_rate)
            self.start.sub_(self._velocity, alpha=self.rate * inner_rate)
        else:
            self._velocity.mul_(self.momentum).add_(change)
            self.start.sub_(change.add_(self._velocity, alpha=self.momentum), alpha=self.rate)
        return self.start
