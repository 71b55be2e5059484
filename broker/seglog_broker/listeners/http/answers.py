"""What a request for a page is answered: a status, a body, and the headers that go with it."""

import json
from http import HTTPStatus
from typing import Any, Final, NamedTuple

TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"


class Answer(NamedTuple):
    """A whole answer."""

    status: HTTPStatus
    body: bytes
    content_type: str = TEXT
    headers: tuple[tuple[str, str], ...] = ()
    """Beside those that every answer has."""
    is_last: bool = False
    """Whether the connection ends with it: what follows the request is not to be read."""


def text(status: HTTPStatus, sentence: str, *headers: tuple[str, str], is_last: bool = False) -> Answer:
    """A sentence for people."""
    return Answer(status, f"{sentence}\n".encode(), TEXT, headers, is_last)


def json_object(status: HTTPStatus, value: dict[str, Any]) -> Answer:
    """An object for programs."""
    return Answer(status, f"{json.dumps(value, indent=2)}\n".encode(), JSON)
