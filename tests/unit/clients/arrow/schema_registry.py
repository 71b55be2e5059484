"""A registry of schemas for tests: it answers as Confluent's does, over HTTP on loopback."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

NOT_THERE = {"error_code": 40403, "message": "Schema not found"}


class SchemaRegistry:
    """``answers`` by path; a number is a status without an answer. ``asked`` has the paths, and who asked."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.url = ""

    def add(self, number: int, subject: str, schema: str, **more: Any) -> None:
        """Register a schema as the newest of its subject, in version 1."""
        self.answers[f"/schemas/ids/{number}"] = {"schema": schema, **more}
        for version in ("1", "latest"):
            found = {"subject": subject, "version": 1, "id": number, "schema": schema, **more}
            self.answers[f"/subjects/{subject}/versions/{version}"] = found


@contextmanager
def schema_registry() -> Iterator[SchemaRegistry]:
    """A registry that answers while the block runs."""
    registry = SchemaRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            registry.asked.append((self.path, self.headers["Authorization"]))
            answer = registry.answers.get(self.path, 404)
            status, body = (answer, NOT_THERE) if isinstance(answer, int) else (200, answer)
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        registry.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join()
