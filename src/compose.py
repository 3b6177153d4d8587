"""From a command line to checked cells: sweeps expanded, every cell composed.

Hydra's own sweeper and launcher run the cells later; here all of them are composed and checked
first, because stock Hydra notices a wrong last cell only after the others have run.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from src import config as configuration
from src.command_line import CommandLine
from src.config import CONF, Config
from src.rules import DESCRIPTIVE, GROUPS, ConfigError, check_types, nearest

# What the name of a run says anyway, or what doesn't change the result.
NAMED = {*GROUPS, "workers", "batch", "seed"}
UNNAMED = ("out", "overwrite", "tracking", "hydra", "checkpoint_every")
NAME_LIMIT = 100


def cells(line: CommandLine) -> list[Config]:
    """Every cell of the command line, composed and checked.

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
        rows = BasicSweeper.split_arguments(parsed, None)[0]
    except HydraException as error:
        raise ConfigError(f"{_first_line(error)}; list the values instead, as in batch=64,128") from error
    defaults: dict[tuple[str, ...], dict[str, Any]] = {}
    found: list[Config] = []
    with initialize_config_dir(str(CONF.absolute()), version_base="1.3"):
        for row in rows:
            found.append(_cell(row, extra, defaults))
    _check_out(found)
    return found


def _cell(row: Sequence[str], extra: list[str], defaults: dict[tuple[str, ...], dict[str, Any]]) -> Config:
    groups = tuple(word for word in row if word.split("=")[0] in GROUPS)
    if groups not in defaults:
        defaults[groups] = _plain(_compose([*groups, *extra], {}))
    cfg = _compose([*row, *extra], defaults[groups])
    return finish(cfg, row, defaults[groups])


def name_rows(rows: Sequence[Sequence[str]]) -> Iterator[tuple[str, dict[str, Any], Sequence[str]]]:
    """(name, composition, overrides) of each row of overrides, with types and ranges checked.

    A study is composed with this; whether the machine at hand can run a row is not asked.
    """
    with initialize_config_dir(str(CONF.absolute()), version_base="1.3"):
        defaults: dict[tuple[str, ...], dict[str, Any]] = {}
        for row in rows:
            groups = tuple(word for word in row if word.split("=")[0] in GROUPS)
            if groups not in defaults:
                defaults[groups] = group_defaults(list(groups))
            plain = defaults[groups]
            raw = _plain(_compose(list(row), plain))
            if (minutes := cap_minutes(raw["max_minutes"])) != raw["max_minutes"]:
                row = [
                    *(word for word in row if not word.startswith("max_minutes=")),
                    f"max_minutes={minutes}",
                ]
                raw["max_minutes"] = minutes
            check_types(raw, plain)
            yield run_name(raw, row, plain), raw, row


def group_defaults(groups: list[str]) -> dict[str, Any]:
    """The composition of these groups alone, inside a Hydra job."""
    return _plain(_compose(groups, {}))


def finish(cfg: DictConfig, overrides: Sequence[str], defaults: Mapping[str, Any]) -> Config:
    """Checks one composed cell and names its directory.

    `overrides` are the cell's own words; `defaults` is the composition with its groups alone.
    """
    raw = _plain(cfg)
    if "path" in raw["model"] and raw["model"]["path"] is None:
        raise ConfigError(
            "model=custom: needs model.path=package.module.name, as torchvision.models.resnet34"
        )
    check_types(raw, defaults)
    if not raw["tracking"]["study"]:
        # A study's cells are capped while it is composed: DVC caches their results by their command.
        raw["max_minutes"] = cap_minutes(raw["max_minutes"])
    return configuration.resolve(raw, raw["out"] or f"runs/{run_name(raw, overrides, defaults)}")


def run_name(raw: Mapping[str, Any], overrides: Sequence[str], defaults: Mapping[str, Any]) -> str:
    """`<strategy>-<model>-<dataset>-w<workers>-b<batch>-s<seed>` and each further key that differs."""
    workers = raw["workers"] or raw["strategy"]["supports"]["workers"]["default"]
    parts = [raw[group]["name"] for group in ("strategy", "model", "dataset")]
    parts += [f"w{workers}", f"b{raw['batch']}", f"s{raw['seed']}"]
    if raw["hardware"]["name"] != "local":
        parts.append(f"hardware={raw['hardware']['name']}")
    for word in sorted(overrides):
        key = word.split("=")[0].lstrip("+")
        if key in NAMED or key.split(".")[0] in UNNAMED or key == "model.path":
            continue
        value = _select(raw, key)
        if value != _select(defaults, key):
            parts.append(f"{key}={value}".replace("/", "_").replace(" ", "").replace("'", ""))
    name = "-".join(str(part) for part in parts)
    if len(name) <= NAME_LIMIT:
        return name
    return f"{name[: NAME_LIMIT - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def cap_minutes(wanted: float) -> float:
    """Minutes of training after SCALEGUIDE_MAX_MINUTES, which caps them."""
    cap = os.environ.get("SCALEGUIDE_MAX_MINUTES") or str(wanted)
    try:
        minutes = float(cap)
    except ValueError:
        minutes = 0.0
    if not minutes > 0:
        raise ConfigError(f"SCALEGUIDE_MAX_MINUTES={cap}: must be a number above 0")
    return min(wanted, minutes)


def _check_out(found: Sequence[Config]) -> None:
    seen: dict[str, Config] = {}
    for config in found:
        place = os.path.abspath(config.out)
        if place in seen:
            raise ConfigError(
                f"out={config.out}: two cells of the sweep would write there; leave `out` away, "
                "and each gets runs/<name>"
            )
        seen[place] = config


def _parse(overrides: Sequence[str]) -> list[Override]:
    try:
        return OverridesParser.create().parse_overrides(list(overrides))
    except HydraException as error:
        word = next((w for w in overrides if w in str(error)), " ".join(overrides))
        raise ConfigError(f"{word}: can't be read as key=value; quote what has brackets or spaces") from error


def _check_word(override: Override) -> None:
    """Refuses what Hydra would take, and nothing here could read."""
    word, key = str(override.input_line), override.key_or_group
    if not key:
        raise ConfigError(f"{word}: names no key; give key=value")
    group, _, option = key.partition(".")
    if (override.is_add() or override.is_delete()) and not option.startswith("options") and group != "hydra":
        raise ConfigError(f"{word}: keys can't be added or removed; give key=value")
    if key in GROUPS and not override.is_sweep_override() and not isinstance(override.value(), str):
        raise ConfigError(f"{word}: must name a file of conf/{key}/")
    if option and _descriptive(key):
        raise ConfigError(f"{word}: {option} describes the {group} and is fixed in conf/{group}/")


def _compose(overrides: list[str], defaults: Mapping[str, Any]) -> DictConfig:
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
    found = re.search(r"override '([^']+)'|key '([^']+)'", str(error), re.IGNORECASE)
    key = (found.group(1) or found.group(2)).lstrip("+~") if found else ""
    word = next((w for w in overrides if w.lstrip("+~").startswith(f"{key}=")), key)
    keys = [k for k in _flat(defaults) if not _descriptive(k)]
    group = key.partition(".")[0]
    if group in GROUPS and "." in key and defaults:
        own = [k for k in keys if k.startswith(f"{group}.")]
        if key in own:
            return f"{word}: is a mapping; add to it with +{key}.name=value"
        name = next((w for w in overrides if w.startswith(f"{group}=")), f"{group}={defaults[group]['name']}")
        has = f"it has {', '.join(own)}; did you mean {nearest(key, own)}?" if own else "it has no options"
        return f"{word}: {name} has no such option; {has}"
    keys += GROUPS
    if key and keys:
        return f"{word}: no such key; did you mean {nearest(key, keys)}?"
    return _first_line(error)


def _descriptive(key: str) -> bool:
    group, _, option = key.partition(".")
    return option.split(".")[0] in DESCRIPTIVE.get(group, ())


def _flat(mapping: Mapping[str, Any], prefix: str = "") -> list[str]:
    keys: list[str] = []
    for key, value in mapping.items():
        nested = isinstance(value, Mapping) and value
        keys += _flat(value, f"{prefix}{key}.") if nested else [f"{prefix}{key}"]
    return keys


def _select(raw: Mapping[str, Any], key: str) -> Any:
    value: Any = raw
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _plain(cfg: DictConfig) -> dict[str, Any]:
    try:
        plain = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise ConfigError(_first_line(error)) from error
    return {key: value for key, value in plain.items() if key != "hydra"}


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
