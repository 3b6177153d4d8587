"""Join machines by the switch of `src/launch/emulated/`, and cut their links without a sound."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from src.launch.emulated import switch
from src.machine.link import Link
from src.machine.namespaces import NotAllowed

ROOT = Path(__file__).parents[2]


class Network:
    """A switch in a namespace of its own, which ends with the thread that has started it.

    Attributes:
        holders: by number, the process that keeps a machine's network open.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Start the switch, with the variables `environment` besides this process's own.

        Raises:
            NotAllowed: where the system forbids it.
        """
        self.holders: dict[int, int] = {}
        self._down: set[int] = set()
        self._routed: set[int] = set()
        self._switch = subprocess.Popen(
            [sys.executable, "-m", "src.launch.emulated.switch", str(os.getpid())],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # A Ctrl-C reaches the tests alone.
            start_new_session=True,
        )
        try:
            self._hear()
        except BaseException:
            self.close()
            raise

    def join(self, link: Link) -> int:
        """Make the network of one more machine; return its number, from 1.

        Raises:
            NotAllowed: where the system forbids it.
        """
        assert self._switch.stdin is not None
        self._switch.stdin.write(json.dumps({"name": "", "link": link.describe()}) + "\n")
        self._switch.stdin.flush()
        made = self._hear()
        number = len(self.holders) + 1
        self.holders[number] = made["holder"]
        if made["by"] == "router":
            self._routed.add(number)
        return number

    def cut(self, number: int) -> None:
        """Have the switch lose what a machine sends and is sent, so that nobody gets an answer.

        Raises:
            ValueError: for a link with a delay or loss, where the kernel can't have them.
        """
        if number in self._routed:
            raise ValueError(
                f"the link of machine {number} can't be cut: the router forwards, not the kernel"
            )
        if number not in self._down:
            self._rules("add", number)
            self._down.add(number)

    def mend(self, number: int) -> None:
        """Have the switch forward again what it was told to lose."""
        if number in self._down:
            self._rules("del", number)
            self._down.remove(number)

    def close(self) -> None:
        """End the switch, and the networks in which no other process is."""
        self._switch.kill()
        self._switch.wait()
        for pipe in (self._switch.stdin, self._switch.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _rules(self, act: str, number: int) -> None:
        """Add or delete the rules by which the switch loses a machine's packets."""
        for way in ("from", "to"):
            rule = ["ip", "rule", act, way, switch.address(number), "blackhole"]
            subprocess.run(["nsenter", "--target", str(self._switch.pid), "--net", *rule], check=True)

    def _hear(self) -> dict[str, Any]:
        """Return what the switch answers.

        Raises:
            NotAllowed: where that is an error.
        """
        assert self._switch.stdout is not None
        line = self._switch.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "the switch ended at once"}
        if "error" in answer:
            raise NotAllowed(answer["error"])
        return answer
