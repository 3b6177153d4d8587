"""L-BFGS over one vector, with a backtracking line search (Nocedal & Wright 2006, chapters 7 and 3)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

# Loss and gradient [elements] at a point.
Evaluate = Callable[[Tensor], tuple[float, Tensor]]
# Of Armijo's condition (section 3.1); the bounds of a new trial, as parts of the last one.
DECREASE, SHORTEST, LONGEST = 1e-4, 0.1, 0.5
TRIALS = 12


class LBFGS:
    """Keeps the last `history` pairs of steps and changes of the gradient.

    Steps only ever get shorter in a line search: a longer one, which a network's first gradients invite, may
    end where all its ReLUs are closed, and the gradient is none. So Wolfe's second condition may fail; a pair
    without positive curvature is left out. Both gradients of a pair are of one batch.
    """

    def __init__(self, history: int) -> None:
        self._pairs: deque[tuple[Tensor, Tensor]] = deque(maxlen=history)

    def direction(self, gradient: Tensor) -> Tensor:
        """-H g [elements] by algorithm 7.4, H beginning as (7.20) has it; -g without history."""
        found = gradient.neg()
        weights = []
        for step, change in reversed(self._pairs):
            weights.append(torch.dot(step, found) / torch.dot(step, change))
            found.sub_(change * weights[-1])
        if self._pairs:
            step, change = self._pairs[-1]
            found.mul_(torch.dot(step, change) / torch.dot(change, change))
        for (step, change), weight in zip(self._pairs, reversed(weights), strict=True):
            found.add_(step * (weight - torch.dot(change, found) / torch.dot(step, change)))
        return found

    @torch.no_grad()
    def step(self, values: Tensor, evaluate: Evaluate) -> float:
        """One iteration, in place on `values` [elements]; the loss where it began.

        Where no trial is good enough the values stay, and the history, which led there, is forgotten.
        """
        loss, gradient = evaluate(values)
        direction = self.direction(gradient)
        slope = float(torch.dot(gradient, direction))
        # Of the first step nothing is known but that its length shouldn't be the gradient's.
        length = 1.0 if self._pairs else min(1.0, 1 / float(gradient.norm()))
        for _ in range(TRIALS):
            trial = values + length * direction
            found, there = evaluate(trial)
            if found <= loss + DECREASE * length * slope:
                step, change = trial - values, there - gradient
                if torch.dot(step, change) > 1e-10 * torch.dot(change, change):
                    self._pairs.append((step, change))
                values.copy_(trial)
                return loss
            # The least of the parabola through what is known (3.57), or half where that says nothing.
            bend = 2 * (found - loss - length * slope)
            part = -slope * length / bend if bend > 0 else LONGEST
            length *= min(LONGEST, max(SHORTEST, part))
        self._pairs.clear()
        return loss
