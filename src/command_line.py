"""A command line as Hydra's own parser reads it, with flags wherever the user puts them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from hydra._internal.utils import get_args_parser

from src.rules import ConfigError, nearest

# Hydra's flags that would lead it past conf/config.yaml, whose cells are checked here.
REFUSED_FLAGS = ("--config-name", "-cn", "--config-path", "-cp", "--package", "-p", "--experimental-rerun")


@dataclass(frozen=True)
class CommandLine:
    """A command line as Hydra's parser sees it."""

    overrides: list[str]
    multirun: bool
    config_dir: str | None
    informational: bool


def flags_first(arguments: Sequence[str]) -> list[str]:
    """Flags, with their values, before overrides: argparse takes overrides on one side only.

    Raises:
        ConfigError: for an unknown flag.
    """
    actions = {
        flag: action
        for flag, action in get_args_parser()._option_string_actions.items()
        if flag not in REFUSED_FLAGS
    }
    flags: list[str] = []
    overrides: list[str] = []
    waiting = list(arguments)
    while waiting:
        word = waiting.pop(0)
        if not word.startswith("-"):
            overrides.append(word)
            continue
        name = word.split("=")[0]
        if name not in actions:
            raise ConfigError(f"{name}: no such flag; did you mean {nearest(name, actions)}?")
        flags.append(word)
        takes_value = actions[name].nargs != 0 and "=" not in word
        if takes_value and waiting and not waiting[0].startswith("-") and "=" not in waiting[0]:
            flags.append(waiting.pop(0))
    return flags + overrides


def parse(arguments: Sequence[str]) -> CommandLine:
    """Reads a command line whose flags stand first.

    Raises:
        ConfigError: for a flag without its value, or with one that it can't take.
    """
    parser = get_args_parser()
    parser.error = _refuse  # type: ignore[method-assign]
    given = parser.parse_args(list(arguments))
    informational = any((given.help, given.hydra_help, given.cfg, given.info, given.shell_completion))
    if given.resolve and not (given.cfg or given.help):
        raise ConfigError("--resolve: goes with --cfg or --help alone")
    # Shell completion has words of its own.
    overrides = [] if given.shell_completion else given.overrides
    return CommandLine(overrides, given.multirun, given.config_dir, informational)


def _refuse(message: str) -> NoReturn:
    raise ConfigError(message.removeprefix("argument "))
