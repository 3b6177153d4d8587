"""Minimise by L-BFGS over one vector, with a backtracking line search (Nocedal & Wright 2006, 7 and 3)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

# Loss and gradient [elements] at a point.
Evaluate = Callable[[Tensor], tuple[float, Tensor]]
# The constant of Armijo's condition (section 3.1); bounds of a trial's length, as parts of the last trial's.
DECREASE, SHORTEST, LONGEST = 1e-4, 0.1, 0.5
# Most trials of one line search.
TRIALS = 12


class LBFGS:
    """A minimiser with a memory of the last steps, each paired with the change of the gradient over it.

    A line search only shortens the step. A longer one, which a network's first gradients invite, may end
    where all ReLUs output zero and the gradient vanishes. So Wolfe's second condition may fail, and a pair
    without positive curvature is left out. Both gradients of a pair are of one batch.
    """

    def __init__(self, history: int) -> None:
        """Remember up to `history` pairs."""
        self._pairs: deque[tuple[Tensor, Tensor]] = deque(maxlen=history)

    def direction(self, gradient: Tensor) -> Tensor:
        """Return the direction -H g [elements] for a gradient g [elements], by algorithm 7.4.

        The initial H is that of (7.20). Without any pair the direction is -g.
        """
        direction = gradient.neg()
        weights = []
        for step, change in reversed(self._pairs):
            weights.append(torch.dot(step, direction) / torch.dot(step, change))
            direction.sub_(change * weights[-1])
        if self._pairs:
            step, change = self._pairs[-1]
            direction.mul_(torch.dot(step, change) / torch.dot(change, change))
        for (step, change), weight in zip(self._pairs, reversed(weights), strict=True):
            direction.add_(step * (weight - torch.dot(change, direction) / torch.dot(step, change)))
        return direction

    @torch.no_grad()
    def step(self, values: Tensor, evaluate: Evaluate) -> float:
        """Take one iteration in place on `values` [elements]; return the loss before it.

        Where no trial decreases the loss enough, the values stay and all pairs are forgotten.

        Args:
            values: the point where the iteration begins; changed in place.
            evaluate: returns the loss and the gradient [elements] at a point [elements].
        """
        loss, gradient = evaluate(values)
        direction = self.direction(gradient)
        slope = float(torch.dot(gradient, direction))
        # Without pairs the direction has no scale: the first trial moves by a length of 1 at most.
        length = 1.0 if self._pairs else min(1.0, 1 / float(gradient.norm()))
        for _ in range(TRIALS):
            trial = values + length * direction
            trial_loss, trial_gradient = evaluate(trial)
            if trial_loss <= loss + DECREASE * length * slope:
                step, change = trial - values, trial_gradient - gradient
                if torch.dot(step, change) > 1e-10 * torch.dot(change, change):
                    self._pairs.append((step, change))
                values.copy_(trial)
                return loss
            # The minimum of the parabola through both losses and the slope (3.57), or half the length where
            # the parabola has none.
            curvature = 2 * (trial_loss - loss - length * slope)
            part = -slope * length / curvature if curvature > 0 else LONGEST
            length *= min(LONGEST, max(SHORTEST, part))
        self._pairs.clear()
        return loss
