"""Wrap private parts of Hydra: its parser of flags, and how it splits a sweep."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.types import Override


def flags_parser() -> argparse.ArgumentParser:
    """Return the parser of Hydra's own flags and overrides."""
    return get_args_parser()


def actions_by_flag() -> Mapping[str, argparse.Action]:
    """Return the action of Hydra's parser for each flag, by every spelling of it."""
    return get_args_parser()._option_string_actions


def split_sweep(overrides: Sequence[Override]) -> list[list[str]]:
    """Split the overrides of a sweep into those of each cell, as Hydra's basic sweeper does.

    Raises:
        HydraException: for a sweep that can't be enumerated.
    """
    return [list(row) for row in BasicSweeper.split_arguments(list(overrides), None)[0]]
