"""Compose the runs that are profiled or predicted: each worker has a device, be there as many or not."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from src.config import Config, command_line, compose

SHARES = "hardware.share_devices="


def of(words: Sequence[str]) -> list[Config]:
    """Return the cells of a sweep, in order, of which each worker has a device of its own.

    Raises:
        ConfigError: for a mistake in the words.
    """
    given = command_line.flags_first(words)
    typed = any(word.startswith(SHARES) for word in given)
    # More workers than there are devices here are what a prediction is for.
    line = command_line.parse(["-m", *given, *([] if typed else [f"{SHARES}true"])])
    return [cell if typed else _on_own_devices(cell) for cell in compose.cells(line)]


def _on_own_devices(cell: Config) -> Config:
    return dataclasses.replace(cell, hardware=dataclasses.replace(cell.hardware, share_devices=False))
