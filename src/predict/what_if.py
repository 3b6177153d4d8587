"""Change a machine for predictions: `network=2x compute=1.3x` are twice and 1.3 times as fast as they are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from src.config import data_sheets
from src.config.mistakes import ConfigError, nearest
from src.predict.calibrate import Fit

# What can be changed, and the constants that are as many times as high then.
CONSTANTS: Mapping[str, tuple[str, ...]] = {
    "compute": (),
    "network": ("adapter_efficiency",),
    "link": ("link_efficiency", "host_efficiency", "point_to_point", "host_bandwidth"),
}


def is_change(word: str) -> bool:
    """Return whether a word is a change as `network=2x`, and no name, as in `network=ethernet_1g`."""
    key, _, text = word.partition("=")
    return key in CONSTANTS and text not in data_sheets.names(data_sheets.NETWORK)


def parse(words: Sequence[str]) -> dict[str, float]:
    """Read changes as `network=2x`; raise `ConfigError` for what is none."""
    changes: dict[str, float] = {}
    for word in words:
        key, _, text = word.partition("=")
        if key not in CONSTANTS:
            raise ConfigError(
                f"--what-if {word}: there are {', '.join(CONSTANTS)}, as network=2x; did you mean "
                f"{nearest(key, CONSTANTS)}?"
            )
        if not re.fullmatch(r"\d+(\.\d+)?x?", text) or not float(text.rstrip("x")):
            raise ConfigError(f"--what-if {word}: say how many times as fast, as {key}=2x or {key}=0.5x")
        if key in changes:
            raise ConfigError(f"--what-if {word}: {key} is there twice")
        changes[key] = float(text.rstrip("x"))
    return changes


def changed(fit: Fit, changes: Mapping[str, float]) -> Fit:
    """Return a fit of the machine that is so many times as fast."""
    constants = fit.constants
    for key, times in changes.items():
        values = {name: getattr(constants, name) * times for name in CONSTANTS[key]}
        constants = replace(constants, **values)
    return replace(fit, constants=constants, computing=fit.computing / changes.get("compute", 1.0))
