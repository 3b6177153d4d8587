"""Define and check what each key of a run may hold: types, choices, ranges.

A mistake raises `ConfigError`, whose text is the one line that the user sees: what is wrong, what is allowed,
and the nearest valid choice. This module imports neither Hydra nor a framework.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from src.config.synonyms import SYNONYMS


class ConfigError(Exception):
    """A mistake in the user's configuration; the message is one sentence for the user."""


class CannotRunHere(ConfigError):
    """A configuration that this machine can't run, and another one could.

    The attribute `config` is that configuration, once it is known.
    """

    config: Any = None


class OwnCodeError(Exception):
    """An error in a model, reader or strategy of the user's own; the message is one sentence."""


def nearest(word: str, choices: Iterable[str]) -> str:
    """Return the choice closest to `word` in spelling, in whatever case; `choices` must not be empty."""
    spelled = {choice.lower(): choice for choice in choices}
    return spelled[difflib.get_close_matches(word.lower(), list(spelled), n=1, cutoff=0.0)[0]]


def nearest_key(word: str, keys: Iterable[str]) -> str:
    """Return the key that `word` is another name of, or else the closest in spelling, of `keys`."""
    keys = list(keys)
    meant = SYNONYMS.get(word.lower(), "")
    return meant if meant in keys else nearest(word, keys)


@dataclass(frozen=True)
class Rule:
    """A rule for the values of one key.

    Attributes:
        kind: the type of a single value.
        choices: the allowed values, empty for any of the type.
        minimum: the least number.
        maximum: the greatest number.
        above: whether `minimum` itself is excluded.
        optional: whether null is allowed.
        lists: whether a list of numbers above 0 or of names is allowed, besides one of `choices`.
        entries: whether the value is a list, of different entries to which all else of the rule applies.
        length: the value is a list of so many entries, to each of which all else of the rule applies.
        filled: whether a text must have a character that isn't a space.
    """

    kind: type
    choices: tuple[Any, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    above: bool = False
    optional: bool = False
    lists: bool = False
    entries: bool = False
    length: int | None = None
    filled: bool = False

    def check(self, key: str, value: Any) -> None:
        """Raise `ConfigError` unless `value` may stand under `key`."""
        if value is None and self.optional:
            return
        if self.entries:
            self._check_entries(key, value)
            return
        if self.length is not None:
            if not isinstance(value, list) or len(value) != self.length:
                raise ConfigError(f"{key}={value}: must be a list of {self.length} numbers")
            for entry in value:
                dataclasses.replace(self, length=None).check(key, entry)
            return
        if self.lists and (isinstance(value, list) or not self.choices):
            _check_list(key, value)
            return
        if self.choices:
            if value not in self.choices:
                allowed = ", ".join(str(choice) for choice in self.choices)
                hint = nearest(str(value), [str(choice) for choice in self.choices])
                raise ConfigError(f"{key}={value}: must be one of {allowed}; did you mean {hint}?")
            return
        if not self.fits(value):
            names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
            names[dict] = "a mapping, as {name: value}"
            raise ConfigError(f"{key}={value}: must be {names[self.kind]}")
        if self.filled and not value.strip():
            raise ConfigError(f"{key}={value}: must not be empty; leave it away")
        if self.minimum is not None and (value <= self.minimum if self.above else value < self.minimum):
            bound = "above" if self.above else "at least"
            raise ConfigError(f"{key}={value}: must be {bound} {_number(self.minimum)}")
        if self.maximum is not None and value > self.maximum:
            raise ConfigError(f"{key}={value}: must be at most {_number(self.maximum)}")

    def _check_entries(self, key: str, value: Any) -> None:
        """Raise `ConfigError` unless `value` is a list of different entries that fit the rule."""
        if not isinstance(value, list) or not value or any(value.count(entry) > 1 for entry in value):
            raise ConfigError(f"{key}={value}: must be a list of different numbers, as [1] or [0,1]")
        for entry in value:
            dataclasses.replace(self, entries=False, optional=False).check(key, entry)

    def fits(self, value: Any) -> bool:
        """Return whether `value` has the rule's type; a whole number also fits float, a bool no number."""
        if self.kind is float:
            return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf
        if self.kind is int:
            return isinstance(value, int) and not isinstance(value, bool)
        return isinstance(value, self.kind)


def _number(bound: float) -> str:
    """Return a bound as it is typed."""
    return str(bound) if isinstance(bound, int) else f"{bound:g}"


def _check_list(key: str, value: Any) -> None:
    """Raise `ConfigError` unless `value` is a list of numbers above 0, or of names."""
    items = value if isinstance(value, list) else []
    numbers = all(Rule(float).fits(item) and item > 0 for item in items)
    if not items or not (numbers or all(isinstance(item, str) for item in items)):
        raise ConfigError(f"{key}={value}: must be a list, as [2,1]: numbers above 0, or names")


RULES: dict[str, Rule] = {
    "workers": Rule(int, minimum=1, optional=True),
    "scaling": Rule(str, ("strong", "weak")),
    "batch": Rule(int, minimum=1),
    "batch_shares": Rule(str, ("equal", "auto"), lists=True),
    "microbatches": Rule(int, minimum=1, optional=True),
    "epochs": Rule(int, minimum=1),
    "max_minutes": Rule(float, minimum=0, above=True),
    "seed": Rule(int, minimum=0, maximum=2**31 - 1),
    "precision": Rule(str, ("fp32", "bf16")),
    "batchnorm": Rule(str, ("local", "sync")),
    "optimizer.name": Rule(str, ("sgd", "adam", "adamw", "adagrad")),
    "optimizer.lr": Rule(float, minimum=0, above=True),
    "optimizer.momentum": Rule(float, minimum=0, maximum=0.9999),
    "optimizer.weight_decay": Rule(float, minimum=0),
    "optimizer.clip_norm": Rule(float, minimum=0, above=True, optional=True),
    "optimizer.scale_lr": Rule(str, ("none", "linear", "sqrt")),
    "optimizer.warmup_steps": Rule(int, minimum=0),
    "optimizer.schedule": Rule(str, ("constant", "cosine", "step")),
    "evaluate_every": Rule(int, minimum=1, optional=True),
    "target_accuracy": Rule(float, minimum=0, maximum=1, optional=True),
    "checkpoint_every": Rule(int, minimum=1, optional=True),
    "checkpoint_keep": Rule(int, minimum=1),
    "resume": Rule(str, optional=True, filled=True),
    "out": Rule(str, optional=True, filled=True),
    "overwrite": Rule(bool),
    "profiler": Rule(bool),
    "tracking.backend": Rule(str, ("sqlite", "server", "none")),
    "tracking.study": Rule(str, optional=True, filled=True),
}
# Options whose default says too little about what they may hold.
OPTION_RULES = {
    "hardware.repeat_disturbed": Rule(int, minimum=0, optional=True),
    "hardware.devices": Rule(int, minimum=0, optional=True, entries=True),
    **{
        f"hardware.{key}": Rule(str, optional=True, filled=True)
        for key in ("engine", "address", "token_file", "partition", "account")
    },
    "hardware.hosts": Rule(int, minimum=1, optional=True),
    "hardware.scheduler": Rule(str, ("slurm",), optional=True),
    "hardware.time_limit": Rule(float, minimum=1, optional=True),
    "dataset.source": Rule(str, ("original", "generated")),
    "dataset.data_dir": Rule(str, optional=True, filled=True),
    "dataset.fraction": Rule(float, minimum=0, maximum=1, above=True),
    "dataset.generator_seed": Rule(int, minimum=0, maximum=2**31 - 1),
    "dataset.size": Rule(int, minimum=8, optional=True),
    "dataset.limit": Rule(int, minimum=1, optional=True),
    "dataset.test_limit": Rule(int, minimum=1, optional=True),
    # Of a dataset that doesn't say itself, by its `allowed`, what suits it.
    "dataset.augment": Rule(str, ("none", "crop_flip")),
    # Below that a window has no blocks of several samples (src/data/order.py).
    "dataset.shuffle_window": Rule(int, minimum=32, optional=True),
    "model.path": Rule(str, optional=True, filled=True),
    "model.pretrained": Rule(str, optional=True, filled=True),
    "strategy.mpiexec": Rule(str, optional=True, filled=True),
}
GROUPS = ("strategy", "model", "dataset", "hardware", "task")
# Keys of a group's file that describe the choice and are nobody's to set on the command line.
DESCRIPTIVE = {
    "strategy": (
        *("name", "framework", "entry", "serve", "launcher", "exchange", "loopback", "synchronous"),
        *("parity", "reference", "baseline", "supports", "allowed"),
    ),
    "model": ("name", "torch", "tensorflow", "draws", "allowed"),
    "dataset": (
        *("name", "task", "reader", "in_memory", "generator", "files", "sources", "unpack"),
        *("page", "licence", "registration", "allowed"),
    ),
    "hardware": ("name", "allowed"),
    "task": ("name", "torch", "tensorflow", "models", "metrics", "allowed"),
}

# The value of a strategy's key `parity` where nothing keeps its losses from those of one device.
SYNCHRONOUS = "synchronous"

# Former keys, with the names and values that they have now.
RENAMED = {
    "strategy.checkpoint": (
        "strategy.recompute",
        {"never": "none", "except_last": "except_last", "always": "full"},
    ),
}


def check_types(raw: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Check types, choices and ranges of all keys of one composed cell.

    What an option of a strategy, model, dataset, hardware or task may hold follows from its default and from
    the key `allowed` of the group's file.

    Args:
        raw: the composed cell.
        defaults: the composition of the cell's choices of groups without other overrides.

    Raises:
        ConfigError: for the first value that isn't allowed.
    """
    for key, rule in RULES.items():
        rule.check(key, leaf(raw, key))
    for group in GROUPS:
        check_options(group, raw[group], defaults[group])


def check_options(group: str, chosen: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raise `ConfigError` where an option of the `chosen` entry of a group isn't what its default allows."""
    allowed = chosen.get("allowed") or {}
    for option, value in chosen.items():
        if option in DESCRIPTIVE[group]:
            continue
        key = f"{group}.{option}"
        own = _option_rule(defaults.get(option), allowed.get(option))
        rule = own if option in allowed else OPTION_RULES.get(key, own)
        rule.check(key, value)


def leaf(raw: Mapping[str, Any], key: str) -> Any:
    """Return the value under a dotted key.

    Raises:
        ConfigError: where a mapping is missing on the way.
    """
    value: Any = raw
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise ConfigError(f"{key.split('.')[0]}={value}: must be a mapping with the key {part}")
        value = value[part]
    return value


def flatten(mapping: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested mappings by dotted key, after `prefix`; an empty mapping is a value."""
    flat: dict[str, Any] = {}
    for key, value in mapping.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _option_rule(default: Any, allowed: Any) -> Rule:
    """Return the rule for an option, by its default and its entry under `allowed` (choices or bounds)."""
    if isinstance(allowed, list | tuple):
        return Rule(str, tuple(allowed))
    bounds = allowed or {}
    if bounds.get("lists"):
        return Rule(str, tuple(bounds.get("choices", ())), optional=default is None, lists=True)
    if default is None and bounds:
        return Rule(float, minimum=bounds.get("min"), maximum=bounds.get("max"), optional=True)
    if bounds.get("length"):
        return Rule(int, minimum=bounds.get("min"), maximum=bounds.get("max"), length=bounds["length"])
    kind = type(default)
    # A bounded number may be 25 or 25.5, however its default is written; `whole` says otherwise.
    if kind is int and bounds and not bounds.get("whole"):
        kind = float
    if kind not in (int, float, bool, str, dict):
        return Rule(object)
    return Rule(kind, minimum=bounds.get("min"), maximum=bounds.get("max"))
