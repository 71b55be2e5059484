"""Schemas from a registry with Confluent's REST interface: theirs, Apicurio's, Karapace, Redpanda's.

    GET /schemas/ids/{id}                    the schema that the five bytes before a value name
    GET /subjects/{subject}/versions/latest  the one to read a topic by; a number gives a version, for references

A value is framed as ``00``, the id (int32, big-endian), and what was written. Accounts come from the environment:
SEGLOG_REGISTRY_USER with SEGLOG_REGISTRY_PASSWORD_FILE, or SEGLOG_REGISTRY_TOKEN_FILE; they are read anew for each
request, and shown nowhere.
"""

import json
import os
from base64 import b64encode
from dataclasses import dataclass, field
from functools import lru_cache
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

from seglog.arrow.fitting import Unfit
from seglog.secret_files import secret_in
from seglog_protocol.errors import RegistryAwayError, RegistryError

SECONDS: Final = 10.0
"""How long an answer may take."""

_NOT_THERE: Final = 404
_TOO_MANY: Final = 429
_MAY_PASS: Final = 500
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
        self.by_id: Final = lru_cache(maxsize=None)(self._by_id)

    def _by_id(self, number: int, kind: str) -> FoundSchema:
        """The schema with an id. Raises Unfit where there is none of this kind, and RegistryError."""
        return self._found(self._get(f"/schemas/ids/{number}"), kind)

    def latest(self, subject: str, kind: str) -> FoundSchema:
        """The newest schema of a subject. Raises RegistryError."""
        try:
            return self._found(self._get(f"/subjects/{quote(subject, safe='')}/versions/latest"), kind)
        except Unfit as error:
            raise RegistryError(
                f"the registry {self.url} has no {kind} schema for {subject}: values are {error}"
            ) from None

    def _found(self, answer: dict[str, Any], kind: str) -> FoundSchema:
        if (other := answer.get("schemaType", "AVRO")) != kind:
            raise Unfit(f"of a schema for {other}, not {kind}")
        references: dict[str, str] = {}
        for each in answer.get("references") or ():
            path = f"/subjects/{quote(each['subject'], safe='')}/versions/{each['version']}"
            found = self._found(self._get(path), kind)
            references |= {**found.references, each["name"]: found.text}
        return FoundSchema(answer["schema"], references)

    def _get(self, path: str) -> dict[str, Any]:
        request = Request(self.url + path)  # noqa: S310 - http or https, see above
        request.add_header("Accept", "application/vnd.schemaregistry.v1+json")
        if account := _account():
            request.add_unredirected_header("Authorization", account)
        try:
            with urlopen(request, timeout=SECONDS) as answer:  # noqa: S310
                found: dict[str, Any] = json.load(answer)
        except HTTPError as error:
            error.close()
            if error.code == _NOT_THERE:
                raise Unfit(f"of schema {path}, which the registry does not have") from None
            passes = error.code >= _MAY_PASS or error.code == _TOO_MANY
            kind = RegistryAwayError if passes else RegistryError
            raise kind(f"the registry {self.url} answers {error.code} ({error.reason})") from None
        except (OSError, HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise RegistryAwayError(f"the registry {self.url} does not answer: {reason}") from None
        return found


def _account() -> str:
    """Who asks, as a header says it; empty for nobody."""
    if token := os.environ.get("SEGLOG_REGISTRY_TOKEN_FILE"):
        return f"Bearer {secret_in(token).reveal()}"
    if user := os.environ.get("SEGLOG_REGISTRY_USER"):
        password = secret_in(os.environ.get("SEGLOG_REGISTRY_PASSWORD_FILE", "")).reveal()
        return f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"
    return ""
