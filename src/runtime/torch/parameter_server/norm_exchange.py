"""Sum squared norms over parameter servers, each of which has the gradient of its own part of the model.

To clip a gradient takes the norm of the whole. Server 0 is the hub: the others ask it for the sum, and wait
until all have brought their parts of the update of one clock.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Callable

from src.runtime.common import messages

# A worker's pushes reach all servers one after the other. A server that misses one for so long has none to
# come, since the worker died between two of them: the server's process ends, and all are started again.
WAIT_SECONDS = 60.0


class NormHub:
    """The sums of the squared norms that all servers bring, by clock; any thread may call it."""

    def __init__(self, servers: int) -> None:
        """Sum the norms of so many servers."""
        self._servers = servers
        self._changed = threading.Condition()
        self._parts: dict[int, list[float]] = defaultdict(list)

    def __call__(self, clock: int, squares: float) -> float:
        """Add one server's squared norm; return the sum, the same for all servers, once all are there.

        Raises:
            TimeoutError: where a server brings none.
        """
        with self._changed:
            parts = self._parts[clock]
            parts.append(squares)
            if len(parts) == self._servers:
                # The next update of that clock, if there is one, has other parts.
                del self._parts[clock]
                self._changed.notify_all()
            elif not self._changed.wait_for(lambda: len(parts) == self._servers, WAIT_SECONDS):
                raise TimeoutError(f"{len(parts)} of {self._servers} servers have an update of clock {clock}")
            # An exact sum doesn't depend on the order in which the parts have come.
            return math.fsum(parts)


def ask(hub: str, seconds: float) -> Callable[[int, float], float]:
    """Return a function like a `NormHub`, which asks the one at `host:port`.

    Raises `ConnectionError` if nobody listens there within `seconds`.
    """
    connection = messages.connect(hub, seconds=seconds)

    def total(clock: int, squares: float) -> float:
        return float(connection.ask("norm", clock=clock, squares=squares).figures["total"])

    return total
