"""A builder that wants to download in a run without a network is answered with the key that lets it."""

from __future__ import annotations

import dataclasses
import socket
import urllib.error
from typing import Any

import pytest

from src.config import ConfigError
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


@pytest.mark.parametrize("isolated", [True, False])
def test_a_download_is_answered_with_the_key_only_where_there_is_no_network(
    isolated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = config()
    model = {"name": "fetched", "torch": f"{__name__}.build"}
    chosen = dataclasses.replace(plain, model=model)
    monkeypatch.setattr(adapt, "resolve", lambda key, path: build)
    if isolated:
        monkeypatch.setenv(NAMESPACE, "net:[1] /proc/1/ns")
    with pytest.raises(ConfigError if isolated else Exception) as raised:
        adapt.build(chosen, classes=10, shape=(28, 28, 1))
    assert ("hardware.isolate=never" in str(raised.value)) == isolated
    assert ("name resolution" in str(raised.value)) == isolated


def test_a_builders_own_error_stays_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAMESPACE, "net:[1] /proc/1/ns")
    monkeypatch.setattr(adapt, "resolve", lambda key, path: lambda **_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        adapt.build(config(), classes=10, shape=(28, 28, 1))
