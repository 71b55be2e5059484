"""The pages for health and metrics, as the doctor finds them."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from seglog.cli.checkups.listeners import http_check
from seglog.core.dialing import Address
from tests.support import each_case


@contextmanager
def pages(statuses: dict[str, int]) -> Iterator[Address]:
    """A server that answers each page with its status."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(statuses[self.path])
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield Address("127.0.0.1", server.server_address[1])
        finally:
            server.shutdown()
            thread.join()


@each_case(
    ("ready", "health", "verdict", "found"),
    [
        (200, 200, "ok", "answers probes and Prometheus"),
        (200, 503, "ok", "answers probes and Prometheus"),
        (200, 401, "ok", "/metrics with the token"),
        (503, 200, "warning", "still recovering"),
        (200, 403, "warning", "to nobody here"),
    ],
)
def test_pages_are_judged_by_their_status(ready: int, health: int, verdict: str, found: str) -> None:
    with pages({"/readyz": ready, "/healthz": health}) as address:
        check = http_check("PLAINTEXT", address, None, 5)
    assert check.verdict == verdict
    assert found in check.found
    assert bool(check.remedy) is (verdict != "ok")


def test_what_is_no_http_is_said_to_be_unknown() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"\x00\x00\x00\x04what\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        check = http_check("PLAINTEXT", Address("127.0.0.1", server.getsockname()[1]), None, 5)
        thread.join()
    assert check.verdict == "unknown"
    assert "was not asked" in check.found
