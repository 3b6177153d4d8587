"""Read a command line as Hydra does, but accept flags anywhere; explain overrides that Hydra can't use."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf.errors import InterpolationKeyError, UnsupportedInterpolationType

from src.compat.hydra import actions_by_flag, flags_parser
from src.config.keys import GROUPS, key_of
from src.config.mistakes import ConfigError, nearest, nearest_key
from src.config.schema import RENAMED, flatten
from src.machine.folders import obstacle

# Flags that would have Hydra read another configuration than conf/config.yaml, whose cells are checked here.
# What Hydra reads in a value that isn't quoted.
UNQUOTED = re.compile(r"[\w\-/\\+.$%*@?|:\s]")
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

    Hydra's parser accepts overrides only before all flags or only after them. An unknown flag raises
    `ConfigError`.
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
    """Read a command line whose flags stand first; raise `ConfigError` for a flag that lacks a good value."""
    parser = flags_parser()
    parser.error = _refuse  # type: ignore[method-assign]
    parsed = parser.parse_args(list(arguments))
    informational = any((parsed.help, parsed.hydra_help, parsed.cfg, parsed.info, parsed.shell_completion))
    if parsed.resolve and not (parsed.cfg or parsed.help):
        raise ConfigError("--resolve: goes with --cfg or --help alone")
    for flag, given in (("--cfg", parsed.cfg), ("--info", parsed.info)):
        if given and parsed.multirun:
            raise ConfigError(f"{flag}: shows one run; leave -m and further values away")
    # Shell completion has words of its own.
    overrides = [] if parsed.shell_completion else parsed.overrides
    return CommandLine(overrides, parsed.multirun, parsed.config_dir, informational)


def _refuse(message: str) -> NoReturn:
    """Raise `ConfigError` with a message of argparse."""
    raise ConfigError(message.removeprefix("argument "))


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Parse overrides; raise `ConfigError` for a word that isn't one."""
    try:
        return OverridesParser.create().parse_overrides(list(overrides))
    except HydraException as error:
        if len(overrides) > 1:
            for word in overrides:
                parse_overrides([word])
        word = " ".join(overrides)
        raise ConfigError(f"{word}: can't be read as key=value{_odd_character(word)}") from error


def _odd_character(word: str) -> str:
    """Return what of a word's value Hydra can't read, and how to write it."""
    key, _, value = word.partition("=")
    odd = next((each for each in value if not UNQUOTED.fullmatch(each)), "")
    if odd == "~":
        return f" for its character ~; the shell expands {key}=$HOME{value.partition('~')[2]}"
    if odd and not set(value) & set("'\"()[]{}"):
        return f" for its character {odd}; quote the value, for the shell, too: \"{key}='{value}'\""
    return "; quote what has brackets or spaces"


def check_override(override: Override, *, multirun: bool) -> None:
    """Raise `ConfigError` for an override that Hydra would accept but Scaleguide can't use."""
    word, key = str(override.input_line), override.key_or_group
    if not key:
        raise ConfigError(f"{word}: names no key; give key=value")
    group, _, option = key.partition(".")
    if key in RENAMED:
        renamed, choices = RENAMED[key]
        value = word.partition("=")[2]
        raise ConfigError(f"{word}: is called {renamed} now; choose {renamed}={choices.get(value, value)}")
    if (override.is_add() or override.is_delete()) and not option.startswith("options") and group != "hydra":
        raise ConfigError(f"{word}: keys can't be added or removed; give key=value")
    if key in GROUPS and not override.is_sweep_override() and not _is_name(override.value()):
        raise ConfigError(f"{word}: must name a file of conf/{key}/")
    if option and key_of(key).fixed:
        raise ConfigError(f"{word}: {option} describes the {group} and is fixed in conf/{group}/")
    if key == "hydra/sweeper" and override.value() != "basic":
        raise ConfigError(
            f"{word}: isn't used, for all cells are checked before the first; list values, as in batch=64,128"
        )
    if group == "hydra" and not override.is_delete() and not override.is_sweep_override():
        _check_hydra(word, option, override.value(), multirun=multirun)


def _is_name(value: Any) -> bool:
    """Return whether a value can name a file of a group's folder, or of one below."""
    return isinstance(value, str) and not value.startswith("/") and ".." not in value.split("/")


def _check_hydra(word: str, option: str, value: Any, *, multirun: bool) -> None:
    """Raise `ConfigError` for a value of Hydra's own key `hydra.<option>` that would fail once Hydra runs."""
    if option == "mode":
        raise ConfigError(f"{word}: is said by -m: with it the command is a sweep, without it a single run")
    if option == "job.chdir" and value:
        raise ConfigError(
            f"{word}: runs don't change folders, for `out` is relative to this one; leave it away"
        )
    if option in ("run.dir", "output_subdir") and value is not None:
        raise ConfigError(
            f"{word}: has no effect, for Hydra writes no files here; out=DIR says where a run goes"
        )
    if (
        option == "sweep.subdir"
        and multirun
        and (str(value).startswith("/") or ".." in str(value).split("/"))
    ):
        raise ConfigError(f"{word}: must be a folder below hydra.sweep.dir")
    if option == "sweep.dir" and multirun and not value:
        raise ConfigError(f"{word}: must name a folder; leave it away for one below runs/sweeps/")
    if option == "sweep.dir" and multirun and isinstance(value, str):
        # Times of the day and the like come in later parts.
        reason = obstacle(Path(value.partition("${")[0] or "."))
        if reason is not None:
            raise ConfigError(f"{word}: {reason}")
    if option == "searchpath":
        for path in value if isinstance(value, list) else [value]:
            scheme, separator, folder = str(path).rpartition("://")
            if not (separator and scheme != "file") and not Path(folder).is_dir():
                raise ConfigError(f"{word}: {folder}: no such folder")


def explain(error: Exception, overrides: Sequence[str], defaults: Mapping[str, Any]) -> str:
    """Return a sentence for Hydra's error about an override, with the nearest valid key.

    `defaults` is the composition of the choices of groups, which says what keys there are; it may be empty.
    """
    if merged := re.match(r"Error merging override (.*)", str(error)):
        return f"{merged.group(1)}: is no value that Hydra takes"
    match = re.search(r"override '([^']+)'|key '([^']+)'", str(error), re.IGNORECASE)
    key = (match.group(1) or match.group(2)).lstrip("+~").partition("=")[0] if match else ""
    word = next((w for w in overrides if w.lstrip("+~").startswith(f"{key}=")), key)
    if key and defaults:
        return no_such_key(word, key, overrides, defaults)
    # Hydra's sweeper writes "${" as "$\\{".
    interpolated = next((w.replace("\\", "") for w in overrides if re.search(r"\$\\?\{", w)), None)
    return f"{interpolated}: {explain_interpolation(error)}" if interpolated else first_line(error)


def no_such_key(word: str, key: str, overrides: Sequence[str], defaults: Mapping[str, Any]) -> str:
    """Return that `word` sets a key that there isn't, with the nearest one that there is."""
    keys = [k for k in flatten(defaults) if not key_of(k).fixed]
    group = key.partition(".")[0]
    if group == "hydra":
        return f"{word}: Hydra has no such key"
    if group in GROUPS and "." in key:
        options = [k for k in keys if k.startswith(f"{group}.")]
        # A mapping's own keys come first.
        options = [k for k in options if k.rpartition(".")[0] == key.rpartition(".")[0]] or options
        if key in options:
            return f"{word}: is a mapping; add to it with +{key}.name=value"
        name = next((w for w in overrides if w.startswith(f"{group}=")), f"{group}={defaults[group]['name']}")
        hint = (
            f"it has {', '.join(options)}; did you mean {nearest_key(key, options)}?"
            if options
            else "it has no options"
        )
        return f"{word}: {name} has no such option; {hint}"
    return f"{word}: no such key; did you mean {nearest_key(key, [*keys, *GROUPS])}?"


def explain_interpolation(error: Exception) -> str:
    """Return why an interpolation, as `${batch}`, has no value."""
    line = first_line(error)
    if isinstance(error, RecursionError) or "Recursive interpolation" in line:
        return "refers to itself"
    if isinstance(error, UnsupportedInterpolationType):
        return f"{line}; ${{oc.env:NAME}} is the value of an environment variable"
    if isinstance(error, InterpolationKeyError):
        return line.replace("Interpolation key", "refers to the key").replace(
            "not found", "which there isn't"
        )
    return f"has no value: {line}"


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type where there is none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
