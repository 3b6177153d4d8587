"""Expand a command line into cells, and compose and check all of them before the first one runs.

Hydra itself composes each cell of a sweep as its turn comes, so that it would notice a mistake in the last
cell only after the others have run.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from src.compat.hydra import split_sweep
from src.config.checks import resolve
from src.config.command_line import CommandLine
from src.config.run_config import CONF, Config
from src.config.schema import DESCRIPTIVE, GROUPS, RENAMED, ConfigError, check_types, flatten, nearest

# Keys that every run's name has in short form, and keys that don't change a run's result.
NAMED = {*GROUPS, "workers", "batch", "seed"}
UNNAMED = ("out", "overwrite", "tracking", "hydra", "checkpoint_every")
UNNAMED_KEYS = ("model.path", "hardware.wait_minutes", "hardware.isolate")
NAME_LIMIT = 100


def cells(line: CommandLine) -> list[Config]:
    """Compose and check every cell of a command line.

    Raises:
        ConfigError: for the first mistake in any cell.
    """
    if line.config_dir is not None and not Path(line.config_dir).is_dir():
        raise ConfigError(f"--config-dir {line.config_dir}: no such folder")
    extra = (
        [] if line.config_dir is None else [f"hydra.searchpath=[file://{Path(line.config_dir).absolute()}]"]
    )
    parsed = _parse(line.overrides)
    for override in parsed:
        _check_word(override)
    swept = [override for override in parsed if override.is_sweep_override()]
    if swept and not line.multirun:
        raise ConfigError(f"{swept[0].input_line}: several values are a sweep; put -m before or after them")
    try:
        rows = split_sweep(parsed)
    except HydraException as error:
        raise ConfigError(f"{_first_line(error)}; list the values instead, as in batch=64,128") from error
    defaults: dict[tuple[str, ...], dict[str, Any]] = {}
    with initialize_config_dir(str(CONF.absolute()), version_base="1.3"):
        configs = [_compose_cell(row, extra, defaults) for row in rows]
    _check_out(configs)
    return configs


def swept(overrides: Sequence[str]) -> list[str]:
    """Return the overrides that give several values, as they were typed."""
    return [str(override.input_line) for override in _parse(overrides) if override.is_sweep_override()]


def _compose_cell(
    row: Sequence[str], extra: list[str], defaults: dict[tuple[str, ...], dict[str, Any]]
) -> Config:
    """Compose and check the cell with the overrides `row`.

    `extra` are overrides of Hydra's own. `defaults` caches the composition without other overrides, by
    choices of groups.
    """
    groups = tuple(word for word in row if word.split("=")[0] in GROUPS)
    if groups not in defaults:
        defaults[groups] = _to_dict(_compose([*groups, *extra], {}))
    cfg = _compose([*row, *extra], defaults[groups])
    return finish(cfg, row, defaults[groups])


def name_rows(rows: Sequence[Sequence[str]]) -> Iterator[tuple[str, dict[str, Any], Sequence[str]]]:
    """Yield (name, composition, overrides) of each row of overrides.

    A study's grid is composed by this function. Types and ranges are checked, but not whether the present
    machine can run a row. Minutes are capped as by `cap_minutes`, also in the overrides.

    Raises:
        ConfigError: for a row with a mistake.
    """
    with initialize_config_dir(str(CONF.absolute()), version_base="1.3"):
        defaults: dict[tuple[str, ...], dict[str, Any]] = {}
        for row in rows:
            groups = tuple(word for word in row if word.split("=")[0] in GROUPS)
            if groups not in defaults:
                defaults[groups] = group_defaults(list(groups))
            plain = defaults[groups]
            raw = _to_dict(_compose(list(row), plain))
            if (minutes := cap_minutes(raw["max_minutes"])) != raw["max_minutes"]:
                row = [
                    *(word for word in row if not word.startswith("max_minutes=")),
                    f"max_minutes={minutes}",
                ]
                raw["max_minutes"] = minutes
            check_types(raw, plain)
            yield run_name(raw, row, plain), raw, row


def group_defaults(groups: list[str]) -> dict[str, Any]:
    """Compose the choices of groups, as `model=cnn`, without other overrides; Hydra must be initialized."""
    return _to_dict(_compose(groups, {}))


def finish(cfg: DictConfig, overrides: Sequence[str], defaults: Mapping[str, Any]) -> Config:
    """Check one composed cell, name its directory, and return its configuration.

    Args:
        cfg: the cell as Hydra has composed it.
        overrides: the cell's overrides, from which its name is made.
        defaults: the composition of the cell's choices of groups without other overrides.

    Raises:
        ConfigError: for a mistake in the cell.
    """
    raw = _to_dict(cfg)
    if "path" in raw["model"] and raw["model"]["path"] is None:
        raise ConfigError(
            "model=custom: needs model.path=package.module.name, as torchvision.models.resnet34"
        )
    check_types(raw, defaults)
    if not raw["tracking"]["study"]:
        # A study's cells are capped while it is composed: DVC caches their results by their command.
        raw["max_minutes"] = cap_minutes(raw["max_minutes"])
    return resolve(raw, raw["out"] or f"runs/{run_name(raw, overrides, defaults)}")


def run_name(raw: Mapping[str, Any], overrides: Sequence[str], defaults: Mapping[str, Any]) -> str:
    """Return a run's name: `<strategy>-<model>-<dataset>-w<workers>-b<batch>-s<seed>` and keys that differ.

    These keys are the overridden ones whose values aren't those in `defaults`, the composition of the run's
    choices of groups. A name of more than `NAME_LIMIT` characters is cut and ends with a hash.
    """
    workers = raw["workers"] or raw["strategy"]["supports"]["workers"]["default"]
    parts = [raw[group]["name"] for group in ("strategy", "model", "dataset")]
    parts += [f"w{workers}", f"b{raw['batch']}", f"s{raw['seed']}"]
    if raw["hardware"]["name"] != "local":
        parts.append(f"hardware={raw['hardware']['name']}")
    for word in sorted(overrides):
        key = word.split("=")[0].lstrip("+")
        if key in NAMED or key.split(".")[0] in UNNAMED or key in UNNAMED_KEYS:
            continue
        value = _select(raw, key)
        if value != _select(defaults, key):
            parts.append(f"{key}={value}".replace("/", "_").replace(" ", "").replace("'", ""))
    name = "-".join(str(part) for part in parts)
    if len(name) <= NAME_LIMIT:
        return name
    return f"{name[: NAME_LIMIT - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def cap_minutes(requested: float) -> float:
    """Return the `requested` minutes of training, or SCALEGUIDE_MAX_MINUTES where that is set and less.

    Raises:
        ConfigError: where SCALEGUIDE_MAX_MINUTES is no number above 0.
    """
    cap = os.environ.get("SCALEGUIDE_MAX_MINUTES") or str(requested)
    try:
        minutes = float(cap)
    except ValueError:
        minutes = 0.0
    if not minutes > 0:
        raise ConfigError(f"SCALEGUIDE_MAX_MINUTES={cap}: must be a number above 0")
    return min(requested, minutes)


def _check_out(configs: Sequence[Config]) -> None:
    """Raise `ConfigError` where two cells have the same directory."""
    seen: set[str] = set()
    for config in configs:
        path = os.path.realpath(config.out)
        if path in seen:
            raise ConfigError(
                f"out={config.out}: two cells of the sweep would write there; leave `out` away, "
                "and each gets runs/<name>"
            )
        seen.add(path)


def _parse(overrides: Sequence[str]) -> list[Override]:
    """Parse overrides; raise `ConfigError` for a word that isn't one."""
    try:
        return OverridesParser.create().parse_overrides(list(overrides))
    except HydraException as error:
        word = next((w for w in overrides if w in str(error)), " ".join(overrides))
        raise ConfigError(f"{word}: can't be read as key=value; quote what has brackets or spaces") from error


def _check_word(override: Override) -> None:
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
    if key in GROUPS and not override.is_sweep_override() and not isinstance(override.value(), str):
        raise ConfigError(f"{word}: must name a file of conf/{key}/")
    if option and _is_descriptive(key):
        raise ConfigError(f"{word}: {option} describes the {group} and is fixed in conf/{group}/")


def _compose(overrides: list[str], defaults: Mapping[str, Any]) -> DictConfig:
    """Have Hydra compose overrides; raise `ConfigError` in the user's words where that fails.

    `defaults` is the composition of the choices of groups, which says what keys there are; it may be empty.
    """
    try:
        return compose("config", overrides=overrides)
    except MissingConfigException as error:
        group, _, choice = str(error.missing_cfg_file).rpartition("/")
        if not error.options:
            raise ConfigError(_first_line(error)) from error
        options = sorted(error.options)
        raise ConfigError(
            f"{group}={choice}: no such {group}; there are {', '.join(options)}; "
            f"did you mean {nearest(choice, options)}?"
        ) from error
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_explain(error, overrides, defaults)) from error


def _explain(error: Exception, overrides: list[str], defaults: Mapping[str, Any]) -> str:
    """Return a sentence for Hydra's error about an override, with the nearest valid key."""
    match = re.search(r"override '([^']+)'|key '([^']+)'", str(error), re.IGNORECASE)
    key = (match.group(1) or match.group(2)).lstrip("+~") if match else ""
    word = next((w for w in overrides if w.lstrip("+~").startswith(f"{key}=")), key)
    keys = [k for k in flatten(defaults) if not _is_descriptive(k)]
    group = key.partition(".")[0]
    if group in GROUPS and "." in key and defaults:
        options = [k for k in keys if k.startswith(f"{group}.")]
        if key in options:
            return f"{word}: is a mapping; add to it with +{key}.name=value"
        name = next((w for w in overrides if w.startswith(f"{group}=")), f"{group}={defaults[group]['name']}")
        hint = (
            f"it has {', '.join(options)}; did you mean {nearest(key, options)}?"
            if options
            else "it has no options"
        )
        return f"{word}: {name} has no such option; {hint}"
    keys += GROUPS
    if key and keys:
        return f"{word}: no such key; did you mean {nearest(key, keys)}?"
    return _first_line(error)


def _is_descriptive(key: str) -> bool:
    """Return whether a dotted key describes a choice of a group, and can't be set by users."""
    group, _, option = key.partition(".")
    return option.split(".")[0] in DESCRIPTIVE.get(group, ())


def _select(raw: Mapping[str, Any], key: str) -> Any:
    """Return the value under a dotted key, `None` where it is missing."""
    value: Any = raw
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _to_dict(cfg: DictConfig) -> dict[str, Any]:
    """Return a composition as a dictionary with its interpolations resolved, without Hydra's own keys."""
    try:
        plain: Any = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise ConfigError(_first_line(error)) from error
    return {key: value for key, value in plain.items() if key != "hydra"}


def _first_line(error: Exception) -> str:
    """Return the first line of an error's message."""
    return str(error).strip().splitlines()[0]
