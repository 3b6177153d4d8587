"""Read the options of a strategy that its code looks at."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

from src.config.run_config import Config


@dataclass(frozen=True, kw_only=True)
class StrategyOptions:
    """A base of strategies' options: a subclass has a field for each key of its file that it reads.

    A field with a default is of an option that not all of its strategies have.
    """

    @classmethod
    def of(cls, config: Config) -> Self:
        """Return the options that a run has."""
        names = [each.name for each in fields(cls) if each.name in config.strategy]
        return cls(**{name: config.strategy[name] for name in names})
