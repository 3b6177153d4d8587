"""Check the types, choices and ranges of all keys of a run.

A mistake raises `ConfigError`, whose text is the one line that the user sees: what is wrong, what is allowed,
and the nearest valid choice. This module imports neither Hydra nor a framework.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from src.config.keys import GROUPS, KEYS, key_of
from src.config.mistakes import ConfigError
from src.config.rule import Rule

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
    the key `allowed` of the group's file. The first value that isn't allowed raises `ConfigError`.

    Args:
        raw: the composed cell.
        defaults: the composition of the cell's choices of groups without other overrides.
    """
    for key, known in KEYS.items():
        if known.rule is not None and key.partition(".")[0] not in GROUPS:
            known.rule.check(key, leaf(raw, key))
    for group in GROUPS:
        check_options(group, raw[group], defaults[group])


def check_options(group: str, chosen: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raise `ConfigError` where an option of the `chosen` entry of a group isn't what its default allows."""
    allowed = chosen.get("allowed") or {}
    for option, value in chosen.items():
        key = f"{group}.{option}"
        if key_of(key).fixed:
            continue
        own = _option_rule(defaults.get(option), allowed.get(option))
        rule = own if option in allowed else key_of(key).rule or own
        rule.check(key, value)


def leaf(raw: Mapping[str, Any], key: str) -> Any:
    """Return the value under a dotted key; raise `ConfigError` where a mapping is missing on the way."""
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
        whole = int if bounds.get("whole") else float
        return Rule(whole, minimum=bounds.get("min"), maximum=bounds.get("max"), optional=True)
    if bounds.get("length"):
        return Rule(int, minimum=bounds.get("min"), maximum=bounds.get("max"), length=bounds["length"])
    kind = type(default)
    # A bounded number may be 25 or 25.5, however its default is written; `whole` says otherwise.
    if kind is int and bounds and not bounds.get("whole"):
        kind = float
    if kind not in (int, float, bool, str, dict):
        return Rule(object)
    return Rule(kind, minimum=bounds.get("min"), maximum=bounds.get("max"))


def typed(value: Any) -> str:
    """Return a value as it is typed in a command line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
