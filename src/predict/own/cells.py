"""Compose the runs that are profiled or predicted: each worker has a device, be there as many or not."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from src.config import CannotRunHere, Config, command_line, compose

SHARES = "hardware.share_devices="


def of(words: Sequence[str]) -> list[Config]:
    """Return the cells of a sweep, in order, of which each worker has a device of its own.

    Raises:
        ConfigError: for a mistake in the words.
    """
    given = ["-m", *command_line.flags_first(words)]
    try:
        return compose.cells(command_line.parse(given))
    except CannotRunHere:
        # More workers than there are devices here are what a prediction is for.
        if any(word.startswith(SHARES) for word in given):
            raise
    return [_on_own_devices(cell) for cell in compose.cells(command_line.parse([*given, f"{SHARES}true"]))]


def _on_own_devices(cell: Config) -> Config:
    """Return a cell whose workers don't share devices, by which it isn't named either."""
    hardware = dataclasses.replace(cell.hardware, share_devices=False)
    return dataclasses.replace(cell, hardware=hardware, out=cell.out.replace(f"-{SHARES}True", ""))
