"""Follow processes that an agent runs for the parent, as if they were the parent's own children.

An agent is a process that somebody else has started (`src.launch.mpi.agent`, by `mpiexec`) or that has long
been running (`fork_server`). Parent and agent send each other lines of JSON through a Unix socket. When one
of them ends, however that happens, the socket is closed, so that the other one notices.
"""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from collections.abc import Mapping
from io import BufferedRWPair

from src.launch.spawn import AwaitedProcess, signal_group

# Exit status of a process whose agent ended before it could tell the real one.
EXIT_WITH_AGENT = 1


def send_line(stream: BufferedRWPair, message: Mapping[str, object]) -> None:
    """Send `message` as one line of JSON."""
    stream.write(json.dumps(message).encode() + b"\n")
    stream.flush()


class AgentProcess(AwaitedProcess):
    """A process that an agent runs; for the parent, a `Process` like any other.

    The agent sends `{"pid": ...}` as it starts the process, or `{"refused": reason}` if it doesn't, and
    `{"code": ...}` with the exit status at the end (negative: the number of a signal).
    """

    def __init__(self, stream: BufferedRWPair, command: list[str]) -> None:
        """Wait until the agent has started the process.

        Args:
            stream: connection to the agent, to which the request has been sent.
            command: the command of the process, for messages.

        Raises:
            ChildProcessError: if the agent refuses, or has ended.
        """
        super().__init__(" ".join(command))
        line = stream.readline()
        if not line:
            raise ChildProcessError(f"the agent couldn't start {command}")
        answer = json.loads(line)
        if "refused" in answer:
            raise ChildProcessError(answer["refused"])
        self.pid: int = answer["pid"]
        threading.Thread(target=self._listen, args=(stream,), daemon=True).start()

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the process and its children."""
        signal_group(self.pid, number)

    def _listen(self, stream: BufferedRWPair) -> None:
        """Wait for the exit status that the agent sends, and then for the agent's end."""
        code = EXIT_WITH_AGENT
        with contextlib.suppress(OSError, ValueError):
            code = json.loads(stream.readline())["code"]
        self.end(code)
        # If the stream were closed earlier, an agent that is still ending would take the parent for gone.
        with contextlib.suppress(OSError):
            stream.read()
        stream.close()
