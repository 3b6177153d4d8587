"""Accept connections of the run's own processes: of those that know its token."""

from __future__ import annotations

import hmac
import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable

from src.run import variables
from src.runtime.common.messages import Connection, WrongMessage

# Within this time a new connection must show the token.
TOKEN_SECONDS = 10.0
RETRY_SECONDS = 0.05


class Listener:
    """A socket that hands each connection with the run's token to a function, in a thread of its own."""

    def __init__(self, address: str, handle: Callable[[Connection], None]) -> None:
        """Listen at `address` (`host:port`) until `close`.

        A `ConnectionError` of `handle` ends that connection. Any other error is printed and ends the process,
        since the other end would wait for an answer for ever.
        """
        host, port = address.rsplit(":", 1)
        self._handle = handle
        self._token = variables.token().encode()
        self._closed = threading.Event()
        self._listening = socket.create_server((host, int(port)))
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept no further connection."""
        if self._closed.is_set():
            return
        self._closed.set()
        # To close a socket doesn't wake a thread that waits for a connection.
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        """Start a thread for each connection, until the socket is closed."""
        while not self._closed.is_set():
            try:
                accepted, _ = self._listening.accept()
            except OSError:
                # There may be too many open files; strangers' connections end soon.
                self._closed.wait(RETRY_SECONDS)
                continue
            try:
                threading.Thread(target=self._serve, args=(accepted,), daemon=True).start()
            except RuntimeError:
                # This process has as many threads as it may have.
                accepted.close()

    def _serve(self, accepted: socket.socket) -> None:
        """Handle a connection, if it shows the token, until it ends."""
        try:
            connection = self._admit(accepted)
            if connection is not None:
                self._handle(connection)
        except WrongMessage as wrong:
            print(f"refused: {wrong}", flush=True)
        except ConnectionError:
            # The other end has gone; `handle` has done by now what follows from that.
            pass
        except Exception:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        finally:
            accepted.close()

    def _admit(self, accepted: socket.socket) -> Connection | None:
        """Return the connection if it begins with the token, `None` if it says nothing or has gone.

        Raises:
            WrongMessage: if it begins with something else.
        """
        try:
            accepted.settimeout(TOKEN_SECONDS)
            connection = Connection(accepted)
            shown = connection.receive_token()
            accepted.settimeout(None)
        except OSError:
            return None
        if not hmac.compare_digest(shown, self._token):
            raise WrongMessage("a connection without the run's token")
        return connection
