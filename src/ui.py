"""Show the runs in MLflow's UI: `python -m src.ui`, which is `make ui`.

It serves the store of the project, or that of MLFLOW_TRACKING_URI, on 127.0.0.1. A store that is a server
has a UI of its own, whose address is printed. Runs that the store has missed are sent first; `--drop` gives
them up instead.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Sequence

from src.config import ConfigError
from src.config.tracking_address import URI_VARIABLE, check_address, database_path, redacted
from src.run import exit_lines
from src.tracking.completion import drop_unsent, send_unsent
from src.tracking.refusals import ExperimentDeleted, describe
from src.tracking.store import (
    SHARED_VIEW,
    artifacts_of,
    client_at,
    default_uri,
    find_experiment,
    is_own,
    is_server,
    open_store,
)

HOST = "127.0.0.1"
# MLflow 3 opens in its view for GenAI, whatever kind the experiment is, unless the address says otherwise.
VIEW = "?workflowType=machine_learning"
# The experiment of the project's own store has a view with strategy, speed, accuracy and verdict.
COLUMNS = f"&viewStateShareKey={SHARED_VIEW}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 once an address is printed, 1 for a store that fails, 2 for a mistake.

    Where a UI is served here, this process becomes its server.
    """
    parser = argparse.ArgumentParser("python -m src.ui", description="MLflow's UI over all runs.")
    parser.add_argument("--port", type=int, default=5000, help="the port on 127.0.0.1 (default: 5000)")
    parser.add_argument(
        "--drop",
        action="store_true",
        help="give up the runs that the store has missed; their files stay in runs/",
    )
    given = parser.parse_args(arguments)
    port, uri = given.port, default_uri()
    try:
        if URI_VARIABLE in os.environ:
            check_address(os.environ[URI_VARIABLE])
        if given.drop:
            return _drop(uri)
        if is_server(uri):
            print(f"{URI_VARIABLE} is set: the runs and their UI are at {redacted(uri)}")
            return 0
        _check_port(port)
    except ConfigError as error:
        return exit_lines.answer(error)
    try:
        # Before the server's processes begin, so that they find all tables, and files where they now are.
        send_unsent(uri)
        # In a store that others use, too, nothing is made in order to look at it.
        experiment = open_store(uri)[1] if is_own(uri) else find_experiment(client_at(uri))
    except ExperimentDeleted as deleted:
        # The others can be looked at all the same.
        print(f"note: the store {redacted(uri)} {deleted}", file=sys.stderr)
        experiment = None
    except Exception as error:
        return exit_lines.complain(f"error: the store {redacted(uri)} {describe(error)}", 1)
    place = "" if experiment is None else f"/{experiment}/runs"
    shown = f"{VIEW}{COLUMNS}" if place and is_own(uri) else VIEW
    print(f"{redacted(uri)}: http://{HOST}:{port}/#/experiments{place}{shown}", flush=True)
    path = database_path(uri)
    words = ["ui", "--host", HOST, "--port", str(port), "--backend-store-uri", uri]
    if path is not None:
        words += ["--default-artifact-root", artifacts_of(path)]
    # MLflow's own messages, which its client here was told to omit.
    os.environ.pop("MLFLOW_LOGGING_LEVEL", None)
    os.execv(sys.executable, [sys.executable, "-m", "mlflow", *words])


def _drop(uri: str) -> int:
    """Give up the runs that the store has missed, and name them; return 0."""
    dropped = drop_unsent(uri)
    for note in dropped:
        where = "" if note is None or note.folder is None else f", whose files are in {note.folder}"
        print(f"dropped: {'a note that cannot be read' if note is None else note.name}{where}")
    print(f"{len(dropped)} run(s) won't be sent to {redacted(uri)}")
    return 0


def _check_port(port: int) -> None:
    """Raise `ConfigError` where nothing can listen at a port of `HOST`."""
    with socket.socket() as probe:
        # As a server does, which may follow another one at once.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"port {port}: can't be listened at ({error}); choose another: make ui PORT=5001"
            ) from error


if __name__ == "__main__":
    exit_lines.leave(main)
