"""Define the interface of an engine, which knows the hosts of a cluster and starts agents there.

A file of conf/hardware/ names the function that connects to one by import path (`engine`). It is
called with the keys of `hardware`, and returns an `Engine`, or raises `CannotRunHere`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from src.config.mistakes import CommandError


class HostLost(CommandError):
    """The error where an agent can't be reached any more; its text says why."""


@dataclass(frozen=True)
class Node:
    """A host of a cluster as its engine knows it.

    Attributes:
        id: by which the engine knows it.
        address: by which other hosts reach it.
        own: whether this process runs there.
    """

    id: str
    address: str
    own: bool


class Connection(Protocol):
    """A connection to an agent."""

    def call(self, method: str, *arguments: Any, seconds: float) -> Any:
        """Call a method of the agent (`HostAgent.handle`) and return its result; calls may overlap.

        Raises:
            HostLost: where the agent has ended, or there is no answer within `seconds`.
        """

    def close(self) -> None:
        """End the agent's process, if it is there."""


class Engine(Protocol):
    """The interface of an engine that this process is connected to."""

    def nodes(self) -> list[Node]:
        """Return the hosts that are alive; raise `CannotRunHere` where the engine itself is lost."""

    def start_agent(self, node: Node, lost_seconds: float) -> Connection:
        """Start an agent on a host, with this process's code; `call` waits until it is there."""

    def close(self) -> None:
        """Disconnect; the cluster stays."""
