"""Describe a device and a network by their data sheets (`conf/hardware/`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from src.config import data_sheets
from src.config.mistakes import ConfigError, nearest

GIGA = 1e9


class _Sheet(BaseModel):
    """A sheet's figures, all of which are known by name."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Device(_Sheet):
    """A device as its maker describes it.

    Attributes:
        reported: the name that drivers report, as a regular expression for the whole of it.
        memory_gib: of the device, in GiB.
        bandwidth: of its memory, in GB/s.
        peak: TFLOP/s by precision, dense; a precision that it has no units for is left away.
        processors: its streaming multiprocessors.
        link: GB/s each way between two devices of a node.
        switched: whether a device's link is its own (NVLink), or the node's devices share the host's (PCIe).
        node: devices of a node, where a row doesn't say.
        watts: the most that a device takes, its thermal design power; `None` where nobody has said.
    """

    reported: str
    memory_gib: float = Field(gt=0)
    bandwidth: float = Field(gt=0)
    peak: dict[str, float]
    processors: int = Field(gt=0)
    link: float = Field(gt=0)
    switched: bool
    node: int = Field(gt=0)
    watts: float | None = Field(None, gt=0)


class Network(_Sheet):
    """A network between nodes.

    Attributes:
        bandwidth: GB/s each way of one adapter.
        shared: whether a node has one adapter, or each of its devices has one.
    """

    bandwidth: float = Field(gt=0)
    shared: bool = False


Sheet = TypeVar("Sheet", bound=_Sheet)


@cache
def device(name: str) -> Device:
    """Return a device's data sheet; raise `ConfigError` where there is none of that name."""
    return _sheet(Device, data_sheets.DEVICE, "device", name)


def reported_as(names: Sequence[str]) -> str | None:
    """Return the data sheet of a machine's GPUs, whose names drivers report; `None` where none is of them."""
    known = data_sheets.names(data_sheets.DEVICE)
    found = {
        next((sheet for sheet in known if re.fullmatch(device(sheet).reported, name)), None) for name in names
    }
    return found.pop() if len(found) == 1 else None


@cache
def network(name: str) -> Network:
    """Return a network's data sheet, or one of so many GB/s a device where `name` is a number.

    Raises `ConfigError` where there is none of that name.
    """
    try:
        bandwidth = float(name)
    except ValueError:
        return _sheet(Network, data_sheets.NETWORK, "network", name)
    if not 0 < bandwidth < 1e6:
        raise ConfigError(f"network={name}: must be GB/s a device, above 0, or a data sheet's name")
    return Network(bandwidth=bandwidth)


def _sheet(kind: type[Sheet], key: str, word: str, name: str) -> Sheet:
    if (figures := data_sheets.figures(name, key)) is None:
        known = data_sheets.names(key)
        meant = next((each for each in known if each.startswith(name)), nearest(name, known))
        raise ConfigError(
            f"{word}={name}: nobody has described it; there are {', '.join(known)}; did you mean {meant}?"
        )
    try:
        return kind.model_validate(figures)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, (key, *first["loc"])))
        raise ConfigError(f"conf/hardware/{name}.yaml: {where}: {first['msg']}") from error
