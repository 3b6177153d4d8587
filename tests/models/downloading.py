"""A builder that fetches weights first, by a name that nobody has."""

from __future__ import annotations

import urllib.request
from typing import Any


def build(*, classes: int, shape: tuple[int, int, int]) -> Any:
    with urllib.request.urlopen("http://weights.invalid/model.pt", timeout=5):
        raise AssertionError("nobody has that name")
