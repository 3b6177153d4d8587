"""Define a work item: a request that a coordinator has for a worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


# Two work items with the same contents are two.
@dataclass(eq=False)
class WorkItem:
    """A request to a worker.

    Attributes:
        kind, arrays, figures: contents of the message.
        rank: the worker that must answer the request; `None` if any worker may.
    """

    kind: str
    arrays: tuple[np.ndarray, ...] = ()
    figures: dict[str, Any] = field(default_factory=dict)
    rank: int | None = None
