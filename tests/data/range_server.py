"""A server of one file on 127.0.0.1 that knows ranges, and can misbehave as servers do."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Served:
    """What the server has, and how it behaves; tests change it while it runs.

    Attributes:
        body: the file.
        cuts: for each of the next answers, after how many bytes the connection is cut.
        ranges: whether ranges are known.
        validators: whether an ETag is sent.
        refuses: whether every request is answered by 503.
        length: the Content-Length that is told, `None` for the true one.
        pause: where the sender waits for `go_on` once it has sent so many bytes, `None` for nowhere.
        asked: (Range, If-Range) of each request.
        sent: bytes of all bodies.
        paused: is set when the sender waits.
    """

    body: bytes
    cuts: list[int] = field(default_factory=list)
    ranges: bool = True
    validators: bool = True
    refuses: bool = False
    length: int | None = None
    pause: int | None = None
    asked: list[tuple[str | None, str | None]] = field(default_factory=list)
    sent: int = 0
    paused: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    @property
    def etag(self) -> str:
        """The strong validator of the present body."""
        return f'"{hashlib.sha256(self.body).hexdigest()[:16]}"'


@contextlib.contextmanager
def serve(served: Served) -> Iterator[Served]:
    """Serve it while the block runs."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self, served)

        def log_message(self, *arguments: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.url = f"http://127.0.0.1:{server.server_port}/{{file}}"
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield served
    finally:
        served.go_on.set()
        server.shutdown()
        server.server_close()


def answer(request: http.server.BaseHTTPRequestHandler, served: Served) -> None:
    """Answer one request as RFC 9110 has it, but for what `served` says."""
    asked, condition = request.headers.get("Range"), request.headers.get("If-Range")
    served.asked.append((asked, condition))
    if served.refuses:
        request.send_error(503)
        return
    body, start = served.body, 0
    if asked and served.ranges and condition in (None, served.etag):
        start = int(asked.removeprefix("bytes=").removesuffix("-"))
        if start >= len(body):
            request.send_error(416)
            return
        request.send_response(206)
        request.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
    else:
        request.send_response(200)
    rest = body[start:]
    request.send_header("Content-Length", str(len(rest) if served.length is None else served.length))
    if served.validators:
        request.send_header("ETag", served.etag)
    request.end_headers()
    if served.cuts:
        rest = rest[: served.cuts.pop(0)]
    with contextlib.suppress(ConnectionError):
        if served.pause is not None:
            request.wfile.write(rest[: served.pause])
            request.wfile.flush()
            served.paused.set()
            served.go_on.wait(60)
            rest = rest[served.pause :]
        request.wfile.write(rest)
    served.sent += len(rest)
