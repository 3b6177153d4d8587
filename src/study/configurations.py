"""Compose the configurations of a study as far as they say which code is used, and for how long."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

from hydra import initialize_config_dir
from omegaconf import OmegaConf

from src.config import CONF, Config, compose
from src.config.keys import GROUPS


def configurations(cells: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, Config]]:
    """Yield the name of each configuration, and the configuration as far as it says which code is used.

    Choices of different groups are composed at once, whatever they would be together: that is quicker than
    to compose each cell.
    """
    configurations = {str(cell["configuration"]): cell for cell in cells.values()}
    choices_of = [dict.fromkeys(str(cell[group]) for cell in cells.values()) for group in GROUPS]
    composed: dict[tuple[str, str], Any] = {}
    with initialize_config_dir(str(CONF.absolute()), version_base="1.3"):
        for row in zip_longest(*choices_of):
            chosen = [pair for pair in zip(GROUPS, row, strict=True) if pair[1] is not None]
            plain = compose.group_defaults(["=".join(pair) for pair in chosen])
            composed |= {(group, choice): plain[group] for group, choice in chosen}
    for name, cell in configurations.items():
        words = [word for word in shlex.split(cell["overrides"]) if word.partition("=")[0] not in GROUPS]
        typed: Any = OmegaConf.to_container(OmegaConf.from_dotlist([word.lstrip("+") for word in words]))
        groups = {group: {**composed[group, str(cell[group])], **typed.get(group, {})} for group in GROUPS}
        yield name, Config(**{**plain, **typed, **groups})
