"""List the constants of predictions from a profile, with what is believed of each before runs are seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from src.predict.constants import Prior

PRIORS: Mapping[str, Prior] = {
    "computing": Prior(1.0, 0.05),
    "beside": Prior(1.03, 0.05),
    "shared_memory": Prior(1.4, 0.3),
    "exchanging": Prior(1.1, 0.3),
    "slowed": Prior(0.5, 0.4),
    "straggling": Prior(0.05, 0.6),
    "pass_seconds": Prior(1e-3, 0.7),
    "between_seconds": Prior(2e-3, 0.5),
    "sending": Prior(1.5, 0.4),
    "wake_seconds": Prior(1e-3, 1.0),
    "split": Prior(1.3, 0.3),
    "serving": Prior(0.7, 0.5),
    "exchanging_apart": Prior(1.2, 0.4),
}


@dataclass(frozen=True)
class Constants:
    """The constants of a machine and its software.

    Attributes:
        computing: how many times as long a rank computes in a run as in its profile.
        beside: how many times as long as that it does where ranks exchange, whose threads take time too.
        shared_memory, exchanging: how many times as long an exchange takes in a step as by itself, through
            shared memory and by the backend.
        slowed: the part of an exchange that goes on beside a computation by which this takes longer.
        straggling: by how much a rank's step varies, as a part of what it computes.
        pass_seconds: that each pass of a stage takes besides its operations.
        between_seconds: between two steps of stages.
        wake_seconds: that an exchange by the backend, or of threads of another library, takes at least, until
            threads of a CPU are awake.
        split: how many times as long a backward pass for weights takes that is done apart.
        exchanging_apart: how many times as long as that exchanges of other libraries than torch's take.
        serving: by which part of what one worker waits for a server it waits longer for each other worker.
        sending: how many times as long a transfer between stages takes in a step as by itself.
    """

    computing: float = PRIORS["computing"].median
    beside: float = PRIORS["beside"].median
    shared_memory: float = PRIORS["shared_memory"].median
    exchanging: float = PRIORS["exchanging"].median
    slowed: float = PRIORS["slowed"].median
    straggling: float = PRIORS["straggling"].median
    pass_seconds: float = PRIORS["pass_seconds"].median
    between_seconds: float = PRIORS["between_seconds"].median
    sending: float = PRIORS["sending"].median
    wake_seconds: float = PRIORS["wake_seconds"].median
    split: float = PRIORS["split"].median
    serving: float = PRIORS["serving"].median
    exchanging_apart: float = PRIORS["exchanging_apart"].median

    def changed(self, values: Mapping[str, float]) -> Constants:
        """Return the constants with other values of some; `slowed` is below one."""
        return replace(self, **{name: min(v, 0.95) if name == "slowed" else v for name, v in values.items()})
