"""A builder that wants to download in a run without a network is answered with the key that lets it."""

from __future__ import annotations

import dataclasses
import socket
import urllib.error
from typing import Any

import pytest

from src.config import Config, ConfigError
from src.machine.namespaces import NAMESPACE
from src.models import adapt
from tests.support import config


def build(*, classes: int, shape: tuple[int, int, int]) -> Any:
    """Fail as urllib does, and as Keras does with that."""
    try:
        try:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        except OSError as failure:
            raise urllib.error.URLError(failure)  # noqa: B904
    except urllib.error.URLError as failure:
        raise Exception("URL fetch failure") from failure


def build_badly(*, classes: int, shape: tuple[int, int, int]) -> Any:
    """Fail by a mistake of the builder's own."""
    return 1 / 0


def built_by(builder: str) -> Config:
    """Return a configuration whose model a function of this module builds."""
    return dataclasses.replace(config(), model={"name": "fetched", "torch": f"{__name__}.{builder}"})


@pytest.mark.parametrize("isolated", [True, False])
def test_a_download_is_answered_with_the_key_only_where_there_is_no_network(
    isolated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = built_by("build")
    if isolated:
        monkeypatch.setenv(NAMESPACE, "net:[1] /proc/1/ns")
    with pytest.raises(ConfigError if isolated else Exception) as raised:
        adapt.build(chosen, classes=10, shape=(28, 28, 1))
    assert ("hardware.isolate=never" in str(raised.value)) == isolated
    assert ("name resolution" in str(raised.value)) == isolated


def test_a_builders_own_error_stays_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAMESPACE, "net:[1] /proc/1/ns")
    with pytest.raises(ZeroDivisionError):
        adapt.build(built_by("build_badly"), classes=10, shape=(28, 28, 1))


class Open:
    """A class that is made of any arguments before its constructor sees them, as Keras's models are."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Open:
        return super().__new__(cls)

    def __init__(self, classes: int, weights: str | None = "pretrained") -> None:
        self.classes, self.weights = classes, weights


def test_a_class_is_given_what_its_constructor_takes() -> None:
    arguments = {"classes": 10, "num_classes": 10, "shape": (28, 28, 1)}
    made = adapt.call(f"{__name__}.Open", arguments, {})
    assert (made.classes, made.weights) == (10, None)
    with pytest.raises(ConfigError, match="takes no option 'depth'; it takes classes, weights"):
        adapt.call(f"{__name__}.Open", arguments, {"depth": 3})
