"""Expand a command line into cells, and compose and check all of them before the first one runs.

Hydra itself composes each cell of a sweep as its turn comes, so that it would notice a mistake in the last
cell only after the others have run.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_search_path import SearchPathElement
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from src.compat.hydra import split_sweep
from src.config import (
    choices,
    command_line,
    data_sheets,
    dataset_content,
    datasets,
    huggingface,
    live_dataset,
    own_training,
)
from src.config.checks import resolve
from src.config.command_line import CommandLine, explain, first_line, no_such_key
from src.config.keys import GROUPS, key_of
from src.config.mistakes import CannotRunHere, ConfigError, nearest
from src.config.run_config import CONF, DEFAULT_TASK, Config
from src.config.schema import check_types, flatten

NAME_LIMIT = 100
SCHEME = "file://"


def cells(line: CommandLine) -> list[Config]:
    """Compose and check every cell of a command line; raise `ConfigError` for the first mistake in any."""
    if line.config_dir is not None and not (line.config_dir and Path(line.config_dir).is_dir()):
        raise ConfigError(f"--config-dir {line.config_dir}: no such folder")
    folders = [] if line.config_dir is None else [Path(line.config_dir)]
    for folder in folders:
        choices.check_names(folder)
    extra = [f"hydra.searchpath=[{SCHEME}{folder.absolute()}]" for folder in folders]
    parsed = command_line.parse_overrides(line.overrides)
    for override in parsed:
        command_line.check_override(override, multirun=line.multirun)
    swept = [override for override in parsed if override.is_sweep_override()]
    if swept and not line.multirun:
        raise ConfigError(f"{swept[0].input_line}: several values are a sweep; put -m before or after them")
    try:
        rows = split_sweep(parsed)
    except (HydraException, ValueError) as error:
        word = next((str(each.input_line) for each in swept), "")
        raise ConfigError(
            f"{word}: {first_line(error)}; list the values instead, as in batch=64,128"
        ) from error
    if not rows:
        raise ConfigError(f"{swept[0].input_line}: has no value, so that the sweep has no cell")
    defaults_of = functools.cache(lambda groups: group_defaults(groups, folders, extra))
    configs = []
    with initialize_config_dir(str(CONF.absolute()), version_base="1.3"):
        for folder in folders:
            _add_folder(folder)
        for row in rows:
            defaults = defaults_of(groups_of(row))
            configs.append(finish(_compose([*row, *extra], defaults), row, defaults))
    _check_out(configs)
    return configs


def swept(overrides: Sequence[str]) -> list[str]:
    """Return the overrides that give several values, as they were typed."""
    parsed = command_line.parse_overrides(overrides)
    return [str(override.input_line) for override in parsed if override.is_sweep_override()]


def name_rows(rows: Sequence[Sequence[str]]) -> Iterator[tuple[str, dict[str, Any], Sequence[str]]]:
    """Yield (name, composition, overrides) of each row of overrides.

    A study's grid is composed by this function. Rows are checked, but for whether the present machine can run
    them; a mistake raises `ConfigError`. Minutes are capped as by `cap_minutes`, also in the overrides.
    """
    with initialize_config_dir(str(CONF.absolute()), version_base="1.3"):
        defaults_of = functools.cache(group_defaults)
        for row in rows:
            plain = defaults_of(groups_of(row))
            raw = _to_dict(_compose(list(row), plain), row)
            _check_keys(raw, row, plain)
            if (minutes := cap_minutes(raw["max_minutes"])) != raw["max_minutes"]:
                row = [
                    *(word for word in row if not word.startswith("max_minutes=")),
                    f"max_minutes={minutes}",
                ]
                raw["max_minutes"] = minutes
            check_types(raw, plain)
            datasets.check(raw["dataset"], plain["dataset"])
            own_training.fill(raw, row)
            live_dataset.fill(raw, row)
            name = run_name(raw, row, plain)
            with contextlib.suppress(CannotRunHere):
                resolve(raw, name)
            yield name, raw, row


def groups_of(row: Sequence[str]) -> tuple[str, ...]:
    """Return those of the overrides `row` that choose a file of a group, as `model=cnn`."""
    return tuple(word for word in row if word.split("=")[0] in GROUPS)


def group_defaults(
    groups: Sequence[str], folders: Sequence[Path] = (), extra: Sequence[str] = ()
) -> dict[str, Any]:
    """Compose the choices of groups, as `model=cnn`, without other overrides; Hydra must be initialized.

    `folders` are those of the user's own choices, `extra` overrides of Hydra's own. Raises `ConfigError` for
    a choice that there isn't, or whose file isn't what it should be.
    """
    data_sheets.check_absent(groups)
    choices.check_files(groups, folders)
    raw = _to_dict(_compose([*groups, *extra], {}), groups)
    choices.check_described(raw, groups, folders)
    return raw


def _check_keys(raw: Mapping[str, Any], overrides: Sequence[str], defaults: Mapping[str, Any]) -> None:
    """Raise `ConfigError` where `++` has added a key to a composition, other than to a mapping `options`."""
    known = flatten(defaults)
    for key in flatten(raw):
        parts = key.split(".")
        # A key that replaces a mapping, or is within an empty one, is judged by its rule.
        replaces = any(other.startswith(f"{key}.") for other in known)
        within = any(".".join(parts[:count]) in known for count in range(1, len(parts) + 1))
        if replaces or within or "options" in parts[1:-1]:
            continue
        typed = [(w, w.lstrip("+").partition("=")[0]) for w in overrides]
        word, name = next(((w, k) for w, k in typed if f"{key}.".startswith(f"{k}.")), (key, key))
        raise ConfigError(no_such_key(word, name, overrides, defaults))


def finish(cfg: DictConfig, overrides: Sequence[str], defaults: Mapping[str, Any]) -> Config:
    """Check one cell, name its directory, and return its configuration; raise `ConfigError` for a mistake.

    Args:
        cfg: the cell as Hydra has composed it.
        overrides: the cell's overrides, from which its name is made.
        defaults: the composition of the cell's choices of groups without other overrides.
    """
    raw = _to_dict(cfg, overrides)
    _check_keys(raw, overrides, defaults)
    if "path" in raw["model"] and raw["model"]["path"] is None:
        own = bool(raw["model"].get("own_training"))
        example = "mine.Lit" if own else "torchvision.models.resnet34"
        raise ConfigError(
            f"model={'lightning' if own else 'custom'}: needs model.path=package.module.name, as {example}"
        )
    huggingface.check_named(raw["model"])
    check_types(raw, defaults)
    _check_effect(raw, overrides)
    datasets.check(raw["dataset"], defaults["dataset"])
    own_training.fill(raw, overrides)
    live_dataset.fill(raw, overrides)
    raw["dataset"]["content"] = dataset_content.content_of(raw["dataset"])
    raw["dataset"]["code"] = dataset_content.code_of(raw["dataset"])
    if not raw["tracking"]["study"]:
        # A study's cells are capped while it is composed: DVC caches their results by their command.
        raw["max_minutes"] = cap_minutes(raw["max_minutes"])
    return resolve(raw, raw["out"] or f"runs/{run_name(raw, overrides, defaults)}")


def _empty(raw: dict[str, Any], overrides: Sequence[str]) -> None:
    """Empty the mappings of a composition that overrides give as `{}`, but for what others set within them.

    Hydra merges mappings, by which an empty one would have no effect.
    """
    typed = {each.key_or_group: each.value() for each in command_line.parse_overrides(overrides)}
    for key, value in typed.items():
        mapping = _select(raw, key)
        if not isinstance(value, dict) or value or not isinstance(mapping, dict):
            continue
        kept = {other.removeprefix(f"{key}.").split(".")[0] for other in typed if other.startswith(f"{key}.")}
        for name in mapping.keys() - kept:
            del mapping[name]


def _check_effect(raw: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """Raise `ConfigError` for an override that would have no effect."""
    name, momentum = raw["optimizer"]["name"], raw["optimizer"]["momentum"]
    typed = any(word.startswith("optimizer.momentum=") for word in overrides)
    if typed and momentum and name != "sgd":
        raise ConfigError(
            f"optimizer.momentum={momentum:g}: optimizer.name={name} takes none; leave it away, or choose "
            "optimizer.name=sgd"
        )
    output, strategy = raw["task"].get("output"), raw["strategy"]
    if output is not None and strategy["framework"] == "tensorflow":
        raise ConfigError(
            f"task.output={output}: picks an output of a torch model, and strategy={strategy['name']} trains "
            "Keras models; leave it away"
        )


def run_name(raw: Mapping[str, Any], overrides: Sequence[str], defaults: Mapping[str, Any]) -> str:
    """Return a run's name: `<strategy>-<model>-<dataset>-w<workers>-b<batch>-s<seed>` and keys that differ.

    These keys are the overridden ones whose values aren't those in `defaults`, the composition of the run's
    choices of groups. A name of more than `NAME_LIMIT` characters is cut and ends with a hash.
    """
    workers = raw["workers"] or raw["strategy"]["supports"]["workers"]["default"]
    parts = [raw[group]["name"] for group in ("strategy", "model", "dataset")]
    parts += [f"w{workers}", f"b{raw['batch']}", f"s{raw['seed']}"]
    if raw["task"]["name"] != raw["dataset"].get("task", DEFAULT_TASK):
        parts.append(f"task={raw['task']['name']}")
    if raw["hardware"]["name"] != "local":
        parts.append(f"hardware={raw['hardware']['name']}")
    for word in sorted(overrides):
        key = word.split("=")[0].lstrip("+")
        value = _select(raw, key)
        if key_of(key).named == "long" and value != _select(defaults, key):
            parts.append(f"{key}={value}".replace("/", "_").replace(" ", "").replace("'", ""))
    name = "-".join(str(part) for part in parts)
    if len(name) <= NAME_LIMIT:
        return name
    return f"{name[: NAME_LIMIT - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def cap_minutes(requested: float) -> float:
    """Return the `requested` minutes of training, or SCALEGUIDE_MAX_MINUTES where that is set and less.

    Raises `ConfigError` where it is no number above 0.
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


def _compose(overrides: list[str], defaults: Mapping[str, Any]) -> DictConfig:
    """Have Hydra compose overrides; raise `ConfigError` in the user's words where that fails.

    `defaults` is the composition of the choices of groups, which says what keys there are; it may be empty.
    """
    try:
        return compose("config", overrides=overrides)
    except MissingConfigException as error:
        group, _, choice = str(error.missing_cfg_file).partition("/")
        if group not in GROUPS:
            group, _, choice = str(error.missing_cfg_file).rpartition("/")
        if not error.options:
            raise ConfigError(first_line(error)) from error
        options = sorted(set(error.options) - set(data_sheets.names() if group == "hardware" else ()))
        raise ConfigError(
            f"{group}={choice}: no such {group}; there are {', '.join(options)}; "
            f"did you mean {nearest(choice, options)}?"
        ) from error
    except yaml.YAMLError as error:
        raise ConfigError(choices.describe_yaml_error(error)) from error
    except (HydraException, OmegaConfBaseException, RecursionError, UnicodeDecodeError) as error:
        raise ConfigError(explain(error, overrides, defaults)) from error


def _select(raw: Mapping[str, Any], key: str) -> Any:
    """Return the value under a dotted key, `None` where it is missing."""
    value: Any = raw
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _to_dict(cfg: DictConfig, overrides: Sequence[str]) -> dict[str, Any]:
    """Return a composition of `overrides` as a dictionary: interpolations resolved, without Hydra's keys."""
    try:
        plain: Any = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except (OmegaConfBaseException, RecursionError) as error:
        raise ConfigError(explain(error, overrides, {})) from error
    raw = {key: value for key, value in plain.items() if key != "hydra"}
    _empty(raw, overrides)
    return raw


def task_of(dataset: str) -> str:
    """Return the name of the task that a dataset's YAML file names, or that of classification.

    `conf/config.yaml` asks for it in its list of defaults. A file that isn't there, or can't be read, is
    reported by those who compose the dataset.
    """
    try:
        named = choices.read(choices.find("dataset", dataset, _folders())).get("task", DEFAULT_TASK)
    except ConfigError:
        return DEFAULT_TASK
    return str(named)


def _add_folder(folder: Path) -> None:
    """Add a folder of the user's own choices to those that are searched; Hydra must be initialized."""
    elements = GlobalHydra.instance().config_loader().get_search_path().get_path()
    # Hydra wants its own schema to be the last.
    elements.insert(len(elements) - 1, SearchPathElement("command-line", f"{SCHEME}{folder.absolute()}"))


def _folders() -> list[Path]:
    """Return the folders of choices that Hydra searches."""
    elements = GlobalHydra.instance().config_loader().get_search_path().get_path()
    paths = [str(element.path) for element in elements]
    return [Path(path.removeprefix(SCHEME)) for path in paths if path.startswith(SCHEME)]


OmegaConf.register_new_resolver("task_of", task_of, replace=True)
OmegaConf.register_new_resolver("architecture_of", huggingface.architecture_of, replace=True)
