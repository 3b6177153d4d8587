"""Import a framework once, and fork each rank from the process that has done so: a start costs no imports.

    python -m src.launch.local.fork_server SOCKET MODULE...

imports the modules, and serves clients until its standard input ends. SOCKET is the file descriptor of a
listening Unix socket that the server inherits. A client sends one line of JSON and receives two:

    {"command": [python, "-m", module, ...], "environment": {...}, "log": ..., "folder": ..., "nice": ...,
     "cores": [...]}
    {"pid": 4711}
    {"code": 0}                  the exit status; negative: the number of a signal

The forked process leads a session of its own, and has the client's environment, working directory, niceness
and cores. It is killed when its client closes the connection, and when the server ends. (`multiprocessing`'s
forkserver gives its children one environment, and lets them outlive the process that asked for them.)

A process that has several threads must not fork: the child would lack the other threads, but not the locks
that they hold. A server that has several threads after its imports, or couldn't import, answers every client
with `{"refused": reason}`; clients then spawn their processes.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import random
import runpy
import selectors
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from typing import Any, NoReturn

from src.machine import namespaces
from src.run.variables import PARENT, THREADS

# Otherwise the allocator of Arrow, which Keras imports, keeps a thread.
SINGLE_THREADED = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}


class ForkServer:
    """Forks processes for its clients; it must be used by the only thread of its process."""

    def __init__(self, listening: socket.socket, refusal: str | None) -> None:
        """Prepare to serve at a listening socket.

        `refusal` is the reason for which every client is refused, `None` to serve them.
        """
        self._listening = listening
        self._refusal = refusal
        # Each client's connection by the process id of its child, and the other way round.
        self._clients: dict[int, socket.socket] = {}
        self._children: dict[socket.socket, int] = {}
        self._selector = selectors.DefaultSelector()

    def serve(self) -> None:
        """Serve clients until standard input ends; then kill the children that are left."""
        woken, waking = socket.socketpair()
        for end in (woken, waking):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waking.fileno())
        for source in (sys.stdin, self._listening, woken):
            self._selector.register(source, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is sys.stdin:
                    for client in list(self._children):
                        self._drop(client)
                    return
                if key.fileobj is self._listening:
                    self._accept([woken, waking])
                elif key.fileobj is woken:
                    woken.recv(4096)
                    self._reap()
                else:
                    self._drop(key.fileobj)

    def _accept(self, own: list[socket.socket]) -> None:
        """Accept a client and fork the process that it asks for.

        `own` are further sockets of the server, which the child must close.
        """
        client, _ = self._listening.accept()
        request = _receive_line(client)
        if self._refusal is not None:
            _send_line(client, {"refused": self._refusal})
        if request is None or self._refusal is not None:
            client.close()
            return
        # The child writes once it leads a session and has its log: until then it couldn't be killed by its
        # process group, nor its log be read.
        session_ready, session_started = os.pipe()
        # Before the fork: a child that outlives this process by a moment would name its new parent.
        request["environment"][PARENT] = str(os.getpid())
        pid = os.fork()
        if not pid:
            os.close(session_ready)
            signal.set_wakeup_fd(-1)
            self._selector.close()
            for open_socket in (client, self._listening, *own, *self._children):
                open_socket.close()
            _become(request, session_started)
        os.close(session_started)
        os.read(session_ready, 1)
        os.close(session_ready)
        self._clients[pid], self._children[client] = client, pid
        self._selector.register(client, selectors.EVENT_READ)
        _send_line(client, {"pid": pid})

    def _reap(self) -> None:
        """Send the exit statuses of children that have ended to their clients."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                client = self._clients.pop(pid)
                _send_line(client, {"code": os.waitstatus_to_exitcode(status)})
                self._close(client)

    def _drop(self, client: Any) -> None:
        """Kill the child of a client that has closed its connection."""
        if client in self._children:
            pid = self._children[client]
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            del self._clients[pid]
            self._close(client)

    def _close(self, client: socket.socket) -> None:
        """Close the connection to a client."""
        self._selector.unregister(client)
        del self._children[client]
        client.close()


def _receive_line(client: socket.socket) -> dict[str, Any] | None:
    """Receive one line of JSON; return `None` if the client closes its connection first."""
    with client.makefile("rb") as stream:
        line = stream.readline()
    return json.loads(line) if line.endswith(b"\n") else None


def _send_line(client: socket.socket, message: dict[str, int | str]) -> None:
    """Send one line of JSON; do nothing if the client has closed its connection."""
    with contextlib.suppress(OSError):
        client.sendall(json.dumps(message).encode() + b"\n")


def _become(request: dict[str, Any], session_started: int) -> NoReturn:
    """Turn this forked process into the one that a client asks for, and run it to its end.

    A byte is written to the file descriptor `session_started` once the process leads a session and has a log.
    """
    code = 1
    try:
        os.setsid()
        _redirect(request["log"])
        os.write(session_started, b"1")
        os.close(session_started)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.chdir(request["folder"])
        os.setpriority(os.PRIO_PROCESS, 0, request["nice"])
        os.sched_setaffinity(0, request["cores"])
        os.environ.clear()
        os.environ.update(request["environment"])
        # Before libraries may start threads.
        namespaces.enter()
        if os.environ.get("PYTHONFAULTHANDLER"):
            faulthandler.enable()
        _use_threads(os.environ.get(THREADS[0], "1"))
        # Both still are as the server, or a module that it imported, has set them.
        tempfile.tempdir = None
        sys.path[:] = list(_search_path(request["folder"]))
        # All children would otherwise have the server's seed.
        random.seed()
        command = request["command"]
        module = command.index("-m") + 1
        sys.argv[:] = command[module:]
        runpy.run_module(command[module], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        code = error.code if isinstance(error.code, int) else 1 if error.code else 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _redirect(log: str) -> None:
    """Make standard input empty, and append standard output and error to the file `log`."""
    sources = (os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666))
    os.dup2(sources[0], 0)
    for number in (1, 2):
        os.dup2(sources[1], number)
    for source in sources:
        os.close(source)


def _search_path(folder: str) -> Iterator[str]:
    """Yield the folders for `sys.path`: the working directory `folder`, PYTHONPATH, the server's others."""
    yield folder
    yield from filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    yield from sys.path[1:]


def _use_threads(count: str) -> None:
    """Let libraries that were loaded for one thread use `count` threads."""
    if count != "1":
        import threadpoolctl

        threadpoolctl.threadpool_limits(int(count))


def main() -> None:
    """Import the modules named on the command line, and serve."""
    number, *modules = sys.argv[1:]
    listening = socket.socket(fileno=int(number))
    # Collecting garbage while frameworks load costs a quarter of that time, and frees nothing; frozen, their
    # objects stay in pages that all children share.
    gc.disable()
    try:
        for module in modules:
            importlib.import_module(module)
        threads = len(os.listdir("/proc/self/task"))
        refusal = None if threads == 1 else f"{threads} threads after importing {', '.join(modules)}"
    except Exception as error:
        refusal = f"{type(error).__name__}: {error}"
    gc.freeze()
    gc.enable()
    try:
        ForkServer(listening, refusal).serve()
    finally:
        address = listening.getsockname()
        with contextlib.suppress(OSError):
            os.unlink(address)
            # This fails, as it should, where the folder has other sockets.
            os.rmdir(os.path.dirname(address))


if __name__ == "__main__":
    main()
