"""Divide an update's terms between asynchronous workers, who make gradients, and servers, who apply them.

A worker's gradient is that of its part of a batch's mean loss, and an update by itself. So the worker clips
it, as the gradient of the part's own mean loss, and adds the part's share of the weight decay (L2), at the
parameters that it has: under plain SGD the pushes of one batch then add up to one synchronous step. What
`adamw` takes from the parameters themselves, it takes at each update, where they stand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from src.config import Config


@dataclass(frozen=True)
class WorkerTerms:
    """The terms that a worker adds to the gradient of its part of a batch.

    Attributes:
        clip_norm: greatest norm of the gradient of the part's own mean loss; `None` for no limit.
        decay: weight decay (L2), of which the part has its share; added after the gradient was clipped.
    """

    clip_norm: float | None = None
    decay: float = 0.0


def served_optimizer(config: Config) -> Mapping[str, Any]:
    """Return the settings by which servers update: the configured ones, of Downpour SGD those of Adagrad."""
    downpour = config.strategy.get("mode") == "downpour"
    return {**config.optimizer, "name": "adagrad"} if downpour else config.optimizer


def of_workers(optimizer: Mapping[str, Any]) -> WorkerTerms:
    """Return the workers' terms under the settings `optimizer`."""
    decay = 0.0 if optimizer["name"] == "adamw" else optimizer["weight_decay"]
    return WorkerTerms(optimizer["clip_norm"], decay)


def of_servers(optimizer: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings `optimizer` without the workers' terms."""
    decay = optimizer["weight_decay"] if optimizer["name"] == "adamw" else 0.0
    return {**optimizer, "clip_norm": None, "weight_decay": decay}
