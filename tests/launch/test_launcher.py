"""A launcher of the user's own needs all methods, however it gets them; a lacking one is named at once."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from src.config import Config, ConfigError
from src.launch.launcher import Launcher, LocalLauncher, launcher_of
from tests.support import config


class Nothing:
    """A class without any of the methods."""


class Inheriting(Launcher):
    """A class of the protocol's that adds nothing to it."""


class Forgetful(LocalLauncher):
    """A class that leaves away what a local launcher must have."""


class Complete:
    """A class that has all of the methods, and inherits none."""

    def check(self, config: Any) -> None:
        """Accept every configuration."""

    def prepare(self, config: Any) -> None:
        """Prepare nothing."""

    def process_specs(self, config: Any, hosts: Any) -> list[Any]:
        return []

    def open(self, config: Any, logs: Any, hosts: Any) -> tuple[list[Any], None]:
        return [], None


def launched_by(name: str) -> Config:
    """Return a configuration whose strategy names a launcher of this file."""
    chosen = config("strategy=ddp")
    return dataclasses.replace(chosen, strategy={**chosen.strategy, "launcher": f"{__name__}.{name}"})


@pytest.mark.parametrize(
    ("name", "lacks"),
    [
        ("Nothing", "check, prepare, process_specs, open"),
        ("Inheriting", "process_specs, open"),
        ("Forgetful", "process_specs"),
    ],
)
def test_a_launcher_that_lacks_a_method_is_refused(name: str, lacks: str) -> None:
    with pytest.raises(ConfigError) as refused:
        launcher_of(launched_by(name))
    assert str(refused.value) == f"strategy.launcher={__name__}.{name}: has no {lacks}; see docs/extending.md"


def test_a_launcher_need_not_inherit() -> None:
    assert isinstance(launcher_of(launched_by("Complete")), Complete)
