"""Read a command line as Hydra does, but accept flags anywhere among the overrides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from src.compat.hydra import actions_by_flag, flags_parser
from src.config.mistakes import ConfigError, nearest

# Flags that would have Hydra read another configuration than conf/config.yaml, whose cells are checked here.
REFUSED_FLAGS = ("--config-name", "-cn", "--config-path", "-cp", "--package", "-p", "--experimental-rerun")


@dataclass(frozen=True)
class CommandLine:
    """A parsed command line.

    Attributes:
        overrides: the words that set keys, as `batch=64`.
        multirun: whether `-m` asks for a sweep.
        config_dir: the folder of `--config-dir`, with further choices of groups.
        informational: whether flags such as `--help` or `--cfg` ask for a text alone, and nothing is to run.
    """

    overrides: list[str]
    multirun: bool
    config_dir: str | None
    informational: bool

    @property
    def uses_plugin(self) -> bool:
        """Return whether a plugin of Hydra runs the cells, maybe in several processes."""
        return any(word.lstrip("+").startswith("hydra/launcher=") for word in self.overrides)


def flags_first(arguments: Sequence[str]) -> list[str]:
    """Return the words of a command line in another order: flags and their values, then overrides.

    Hydra's parser accepts overrides only before all flags or only after them.

    Raises:
        ConfigError: for an unknown flag.
    """
    actions = {flag: action for flag, action in actions_by_flag().items() if flag not in REFUSED_FLAGS}
    flags: list[str] = []
    overrides: list[str] = []
    words = list(arguments)
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            overrides.append(word)
            continue
        name = word.split("=")[0]
        if name not in actions:
            raise ConfigError(f"{name}: no such flag; did you mean {nearest(name, actions)}?")
        flags.append(word)
        takes_value = actions[name].nargs != 0 and "=" not in word
        if takes_value and words and not words[0].startswith("-") and "=" not in words[0]:
            flags.append(words.pop(0))
    return flags + overrides


def parse(arguments: Sequence[str]) -> CommandLine:
    """Read a command line whose flags stand first.

    Raises:
        ConfigError: for a flag without its value, or with one that it can't take.
    """
    parser = flags_parser()
    parser.error = _refuse  # type: ignore[method-assign]
    parsed = parser.parse_args(list(arguments))
    informational = any((parsed.help, parsed.hydra_help, parsed.cfg, parsed.info, parsed.shell_completion))
    if parsed.resolve and not (parsed.cfg or parsed.help):
        raise ConfigError("--resolve: goes with --cfg or --help alone")
    # Shell completion has words of its own.
    overrides = [] if parsed.shell_completion else parsed.overrides
    return CommandLine(overrides, parsed.multirun, parsed.config_dir, informational)


def _refuse(message: str) -> NoReturn:
    """Raise `ConfigError` with a message of argparse."""
    raise ConfigError(message.removeprefix("argument "))
