"""Schemas from a registry with Confluent's REST interface: theirs, Apicurio's, Karapace, Redpanda's.

    GET /schemas/ids/{id}                    the schema that the five bytes before a value name
    GET /subjects/{subject}/versions/latest  the one to read a topic by; a number gives a version, for references

A value is framed as ``00``, the id (int32, big-endian), and what was written. Accounts come from the environment:
SEGLOG_REGISTRY_USER with SEGLOG_REGISTRY_PASSWORD_FILE, or SEGLOG_REGISTRY_TOKEN_FILE; they are read anew for each
request, and shown nowhere.
"""

import json
import os
import time
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

import msgspec

from seglog.arrow.fitting import Unfit
from seglog.secret_files import secret_in
from seglog_protocol.errors import RegistryAwayError, RegistryError

SECONDS: Final = 10.0
"""How long an answer may take."""

BYTES_MAX: Final = 1024 * 1024
"""Of an answer, as of the records in which registries keep schemas."""

_REFERENCES_MAX: Final = 100
_WRITERS_MAX: Final = 1000

_FRAME: Final = 5


def split_frame(value: bytes) -> tuple[int, bytes]:
    """The schema id before a value, and the rest. Raises Unfit."""
    if value[:1] != b"\0" or len(value) < _FRAME:
        raise Unfit("without the byte 0 and the schema id that a serializer with a registry puts before it")
    return int.from_bytes(value[1:_FRAME], "big"), value[_FRAME:]


@dataclass(frozen=True, slots=True)
class FoundSchema:
    """A schema as registered, and those that it refers to, by the names it has for them."""

    text: str
    references: dict[str, str] = field(default_factory=dict)

    def inlined(self) -> str:
        """An Avro schema that stands for itself: each one that it refers to is where its name is first."""
        left = {name: json.loads(text) for name, text in self.references.items()}

        def walk(schema: Any) -> Any:
            if isinstance(schema, str) and schema in left:
                return walk(left.pop(schema))
            if isinstance(schema, list):
                return [walk(branch) for branch in schema]
            if isinstance(schema, dict):
                places = {"type", "items", "values", "fields"}
                return {key: walk(part) if key in places else part for key, part in schema.items()}
            return schema

        return json.dumps(walk(json.loads(self.text)))


class _Reference(msgspec.Struct):
    name: str
    subject: str
    version: int


class _Answer(msgspec.Struct, rename="camel"):
    schema: str
    schema_type: str | None = None
    references: list[_Reference] | None = None


class Registry:
    """A registry at a URL. Raises ValueError for one with an account in it, which logs would show."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError(f"a registry is http://HOST:PORT or https://HOST, not {parts.scheme or url!r}")
        if "@" in parts.netloc:
            raise ValueError(
                "a registry's account stands in SEGLOG_REGISTRY_USER and SEGLOG_REGISTRY_PASSWORD_FILE, not in its URL"
            )
        self.url: Final = url.rstrip("/")
        self._writers: Final[dict[int, Any]] = {}

    def writer(self, number: int, kind: str, read: Callable[[FoundSchema], Any]) -> Any:
        """What ``read`` makes of the schema with an id, asked for once, even if the registry does not have it.

        Raises Unfit where there is none of this kind that ``read`` takes, and RegistryError.
        """
        if number not in self._writers:
            if len(self._writers) >= _WRITERS_MAX:  # ids of no schema: there may be as many as values
                self._writers.clear()
            try:
                self._writers[number] = read(self._found(self._get(f"/schemas/ids/{number}"), kind))
            except Unfit as error:
                self._writers[number] = error
            except (ValueError, RecursionError) as error:
                self._writers[number] = Unfit(f"of schema {number}, which cannot be read: {error}")
        found = self._writers[number]
        if isinstance(found, Unfit):
            raise Unfit(*found.args)
        return found

    def latest(self, subject: str, kind: str, read: Callable[[FoundSchema], Any]) -> Any:
        """The newest schema of a subject, as ``read`` gives it. Raises RegistryError."""
        try:
            return read(self._found(self._get(f"/subjects/{quote(subject, safe='')}/versions/latest"), kind))
        except (ValueError, RecursionError) as error:
            raise RegistryError(
                f"the registry {self.url} has no {kind} schema for {subject} that can be read: {error}"
            ) from None

    def _found(self, answer: _Answer, kind: str) -> FoundSchema:
        """The schema with all that it refers to, and that those refer to."""
        if (other := answer.schema_type or "AVRO") != kind:
            raise Unfit(f"of a schema for {other}, not {kind}")
        references: dict[str, str] = {}
        left = list(answer.references or ())
        while left:
            each = left.pop()
            if each.name in references:  # by several, or in a circle
                continue
            if len(references) >= _REFERENCES_MAX:
                raise RegistryError(f"the registry {self.url} has a schema that refers to too many others")
            found = self._get(f"/subjects/{quote(each.subject, safe='')}/versions/{each.version}")
            references[each.name] = found.schema
            left += found.references or ()
        return FoundSchema(answer.schema, references)

    def _get(self, path: str) -> _Answer:
        request = Request(self.url + path)  # noqa: S310 - http or https, see above
        request.add_header("Accept", "application/vnd.schemaregistry.v1+json")
        if account := _account():
            request.add_unredirected_header("Authorization", account)
        try:
            with urlopen(request, timeout=SECONDS) as answer:  # noqa: S310
                content = _content(answer)
        except HTTPError as error:
            error.close()
            if error.code == HTTPStatus.NOT_FOUND:
                raise Unfit(f"of schema {path}, which the registry does not have") from None
            passes = error.code == HTTPStatus.TOO_MANY_REQUESTS or error.code >= HTTPStatus.INTERNAL_SERVER_ERROR
            kind = RegistryAwayError if passes else RegistryError
            raise kind(f"the registry {self.url} answers {error.code} ({error.reason})") from None
        except (OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise RegistryAwayError(f"the registry {self.url} does not answer: {reason}") from None
        try:
            return msgspec.json.decode(content, type=_Answer)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RegistryError(f"{self.url}{path} is no answer of a registry of schemas: {error}") from None


def _content(answer: HTTPResponse) -> bytes:
    """All of an answer. Raises OSError for one that takes too long, or is too long."""
    end, content = time.monotonic() + SECONDS, b""
    while part := answer.read1():
        content += part
        if time.monotonic() > end:
            raise TimeoutError("timed out")
        if len(content) > BYTES_MAX:
            raise OSError(f"its answer is longer than {BYTES_MAX} bytes")
    return content


def _account() -> str:
    """Who asks, as a header says it; empty for nobody."""
    if token := os.environ.get("SEGLOG_REGISTRY_TOKEN_FILE"):
        return f"Bearer {secret_in(token).reveal()}"
    if user := os.environ.get("SEGLOG_REGISTRY_USER"):
        if not (file := os.environ.get("SEGLOG_REGISTRY_PASSWORD_FILE")):
            raise RegistryError(
                "SEGLOG_REGISTRY_USER is set without SEGLOG_REGISTRY_PASSWORD_FILE, the password's file"
            )
        return f"Basic {b64encode(f'{user}:{secret_in(file).reveal()}'.encode()).decode()}"
    return ""
