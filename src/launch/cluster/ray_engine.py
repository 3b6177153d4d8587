"""Connect to a Ray cluster, and start agents as its actors; no other file imports Ray.

Ray knows the hosts, checks who connects, starts the agents with this project's code, and carries what they
are asked. It is not in the way of what ranks exchange.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import logging
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from src.config import CannotRunHere
from src.launch.cluster.engine import HostLost, Node
from src.launch.cluster.facts import ROOT
from src.launch.local import reaper

# Ray, which may try for longer, is given so many seconds to connect.
CONNECT_SECONDS = 27.0
# Ray tries for so long whether a token is wrong, by default for 20 seconds.
TOKEN_SECONDS = "5"
# The head answers at once, or not any more.
HEAD_SECONDS = 5.0
# It is asked to end an agent, which without it ends by its lease.
KILL_SECONDS = 1.0
# Ray ends a process without a head after so long, by default 60 seconds; this one has to say what happened.
HEADLESS_SECONDS = "86400"
HEAD_LOST = "the head of the Ray cluster doesn't answer any more"
# Calls to an agent that may be under way at once: for ends of processes, files, samples, and others.
CALLS = 8
# Agents and ranks need these of the project.
CODE = ("src", "conf")
# Ray hides GPUs from an actor that asks for none; agents see what `ray start` saw.
ENVIRONMENT = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
INSTALL = "pip install -c constraints.txt '.[cluster]'"


def is_installed() -> bool:
    """Return whether Ray is installed."""
    spec = importlib.util.find_spec("ray")
    # Any folder of that name is an empty package, and Ray itself makes one among temporary files.
    return spec is not None and spec.origin is not None


def connect(hardware: Mapping[str, Any]) -> RayEngine:
    """Connect to the Ray cluster at `hardware.address`.

    Raises:
        CannotRunHere: where Ray isn't installed, or there is no cluster, or it asks for another token.
    """
    key = f"hardware.address={hardware['address']}"
    # Before Ray is imported, which reads them.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_gcs_server_port_wait_time_s", TOKEN_SECONDS)
    os.environ |= {"RAY_gcs_rpc_server_reconnect_timeout_s": HEADLESS_SECONDS}
    if hardware["token_file"] is not None:
        os.environ |= {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(Path(hardware["token_file"]).expanduser().absolute()),
        }
    if not is_installed():
        raise CannotRunHere(f"hardware={hardware['name']}: needs Ray, which isn't installed here; {INSTALL}")
    import ray

    address = hardware["address"]
    if address not in (None, "auto"):
        _check_reachable(key, address)
    # What goes wrong is told in one line, and that it leaves signals to this process is as it should be.
    logging.getLogger("ray").setLevel(logging.CRITICAL)

    def begin() -> None:
        ray.init(
            address=address or "auto",
            namespace="scaleguide",
            log_to_driver=False,
            logging_level=logging.CRITICAL,
            configure_logging=False,
            runtime_env={"working_dir": str(_code()), "env_vars": ENVIRONMENT},
        )

    try:
        # It waits for a minute where something else listens at the address, or the token is wrong.
        _within(CONNECT_SECONDS, begin)
    except _NoAnswer:
        raise CannotRunHere(f"{key}: no Ray cluster answers there within {CONNECT_SECONDS:g} s") from None
    except (Exception, SystemExit) as error:
        raise CannotRunHere(f"{key}: {_reason(error, named=address not in (None, 'auto'))}") from error
    return RayEngine(key)


T = TypeVar("T")


class _NoAnswer(Exception):
    """The error where Ray doesn't answer in time."""


def _nodes() -> list[dict[str, Any]]:
    """Return what the head of the cluster says of its nodes; raise `_NoAnswer` where it doesn't answer."""
    import ray

    try:
        return _within(HEAD_SECONDS, ray.nodes)
    except Exception as error:
        raise _NoAnswer from error


def _within(seconds: float, ask: Callable[[], T]) -> T:
    """Return what Ray answers, or raise `_NoAnswer` after `seconds`: without a head it might never answer."""
    answer: Future[T] = Future()

    def wait() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=wait, name="ask Ray", daemon=True).start()
    try:
        # What Ray raises may be a time-out of its own.
        error = answer.exception(seconds)
    except TimeoutError:
        raise _NoAnswer from None
    if error is not None:
        raise error
    return answer.result()


def _check_reachable(key: str, address: str) -> None:
    """Raise `CannotRunHere` where nothing listens at an address, which Ray would take long to find out."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise CannotRunHere(f"{key}: must be auto, or host:port as `ray start` prints it")
    try:
        socket.create_connection((host, int(port)), 5).close()
    except OSError as error:
        raise CannotRunHere(
            f"{key}: no Ray cluster is there ({error.strerror or error}); `ray start --head` starts one"
        ) from error


def _reason(error: BaseException, *, named: bool) -> str:
    """Return in a few words why Ray can't connect to an address, where something listens if it is `named`."""
    text = " ".join(str(error).split())
    if "uthentication" in type(error).__name__ + text or "oken" in text:
        return (
            "the cluster asks for a token, and not for this one; hardware.token_file names the file with it"
        )
    if isinstance(error, ConnectionError) and named:
        # Ray doesn't tell these apart.
        return "what listens there is no Ray cluster, or has another token than that of hardware.token_file"
    if isinstance(error, ConnectionError):
        return "no Ray cluster runs on this host; `ray start` starts or joins one"
    return f"can't connect to the Ray cluster: {text[:300] or type(error).__name__}"


def _code() -> Path:
    """Return a folder with the project's code alone, which Ray brings to hosts, until this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="scaleguide-code-"))
    # This is for a process that is killed.
    reaper.remove_at_end("folder", str(folder))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in CODE:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


class _Actor:
    """The agent of a host as a Ray actor."""

    def __init__(self, address: str, lost_seconds: float) -> None:
        from src.launch.cluster.agent import HostAgent

        self._agent = HostAgent(address, lost_seconds)

    def handle(self, method: str, *arguments: Any) -> Any:
        """Call a method of the agent."""
        return self._agent.handle(method, *arguments)


class RayEngine:
    """A Ray cluster (an `Engine`) that this process is connected to."""

    def __init__(self, key: str) -> None:
        """Use the cluster to which this process is connected; `key` says how it was asked for."""
        self._key = key

    def nodes(self) -> list[Node]:
        """Return the nodes that are alive; raise `CannotRunHere` where the head of the cluster is lost."""
        import ray

        own = ray.get_runtime_context().get_node_id()
        try:
            found = _nodes()
        except _NoAnswer:
            raise CannotRunHere(f"{self._key}: {HEAD_LOST}") from None
        return [
            Node(each["NodeID"], each["NodeManagerAddress"], each["NodeID"] == own)
            for each in found
            if each["Alive"]
        ]

    def start_agent(self, node: Node, lost_seconds: float) -> RayConnection:
        """Start an agent on a node, which is not started anywhere else."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # An agent uses no core of its own, and isn't started again: what it knew would be lost.
        actor = (
            ray.remote(_Actor)
            .options(
                num_cpus=0,
                max_restarts=0,
                max_concurrency=CALLS,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
            )
            .remote(node.address, lost_seconds)
        )
        return RayConnection(actor, node)

    def close(self) -> None:
        """Disconnect from the cluster, which goes on."""
        import ray

        try:
            _within(HEAD_SECONDS, ray.shutdown)
        except _NoAnswer:
            # Ray would try once more as the interpreter ends, and for longer.
            atexit.unregister(ray.shutdown)


class RayConnection:
    """A connection to an agent that is a Ray actor (a `Connection`)."""

    def __init__(self, actor: Any, node: Node) -> None:
        self._actor, self._node = actor, node

    def call(self, method: str, *arguments: Any, seconds: float) -> Any:
        """Call a method of the agent, as a `Connection` does."""
        import ray

        try:
            return ray.get(self._actor.handle.remote(method, *arguments), timeout=seconds)
        except ray.exceptions.GetTimeoutError as error:
            raise HostLost(f"it didn't answer for {seconds:g} s") from error
        except ray.exceptions.RayTaskError as error:
            # The agent itself has raised it. Of a system's error Ray's copy has neither number nor file.
            if isinstance(error.cause, OSError):
                raise HostLost(f"its agent can't do its work: {error.cause}") from error
            raise
        except ray.exceptions.RayError as error:
            raise HostLost(self._why(error)) from error

    def _why(self, error: BaseException) -> str:
        """Return why there is no agent any more."""
        import ray

        try:
            nodes = _nodes()
        except _NoAnswer:
            return f"its agent has ended, and {HEAD_LOST}"
        if not any(each["NodeID"] == self._node.id and each["Alive"] for each in nodes):
            return "the host has left the cluster"
        if isinstance(error, ray.exceptions.ActorUnavailableError):
            return "its agent has ended (no connection)"
        # What follows the first sentence are Ray's ids.
        return f"its agent has ended ({' '.join(str(error).split()).split('.')[0]})"

    def close(self) -> None:
        """End the agent's process."""
        import ray

        with contextlib.suppress(_NoAnswer):
            _within(KILL_SECONDS, lambda: ray.kill(self._actor))
