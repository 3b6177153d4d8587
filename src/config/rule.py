"""Define what the value of a key may be: its type, choices and bounds."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from src.config.mistakes import ConfigError, nearest


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
        numbered: whether a whole number may stand for a text.
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
    numbered: bool = False

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
        if self.numbered and Rule(int).fits(value):
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
