"""The page of keys is written from the configuration."""

from __future__ import annotations

from bench import keys
from src.config.keys import KEYS, key_of


def test_the_page_is_as_the_configuration_has_it() -> None:
    assert keys.PAGE.read_text() == keys.page(), "python -m bench.keys writes it"


def test_every_key_of_a_run_that_has_a_rule_is_on_it() -> None:
    page = keys.page()
    asked = [key for key, known in KEYS.items() if known.rule is not None and not key_of(key).fixed]
    assert [key for key in asked if f"| `{key}` |" not in page] == []
