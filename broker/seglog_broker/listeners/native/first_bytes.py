"""Hints for peers whose first bytes are not seglog's native protocol, so that people see why they are not served.

A wrong guess does no harm: the connection is closed either way.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from seglog_protocol.kafka import messages, write_response
from seglog_protocol.kafka.error_codes import ErrorCode

_OUR_PORT: Final = "This is the native port of a seglog broker, not"

HTTP_METHODS: Final = (b"GET ", b"POST ", b"HEAD ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"CONNECT ", b"PRI ")
"""With one of them a request of HTTP begins."""

_KAFKA_API_KEY_MAX: Final = 100
_KAFKA_API_VERSION_MAX: Final = 30
_KAFKA_API_VERSIONS: Final = 18
_KAFKA_API_VERSIONS_MAX: Final = 4

_NOT_SEGLOG: Final = "not the seglog protocol"


class Hint(NamedTuple):
    """The protocol that the peer seems to speak, for the log, with a reason, and the bytes to answer with."""

    kind: str
    answer: bytes
    reason: str = _NOT_SEGLOG


def hint_for(first: bytes, kafka: Sequence[str] = ()) -> Hint:
    """The hint for a connection that began with ``first``: any bytes, or none.

    ``kafka`` are the addresses for Kafka's clients.
    """
    if first.startswith(HTTP_METHODS):
        return Hint("http", http_answer(f"{_OUR_PORT} a web server; use a seglog client, such as `seglog ping`."))
    if first[:2] == b"\x16\x03":
        return Hint("tls", _line(f"{_OUR_PORT} a TLS one; connect without TLS."))
    if _looks_like_kafka(first):
        where = f"its port is {' or '.join(kafka)} (listeners)" if kafka else "listeners is empty, so it has no port"
        return Hint("kafka", _kafka_answer(first), f"a Kafka client on seglog's own port: {where}")
    return Hint("unknown", _line(f"{_OUR_PORT} what you expected; a connection begins with a `hello` frame."))


def _looks_like_kafka(first: bytes) -> bool:
    """Whether the bytes begin as a Kafka request does: size:i32 api_key:i16 api_version:i16.

    A frame of ours has its header's length in place of the last two. Key 0 (Produce) is never a client's first
    request, and would be a small header of ours.
    """
    if len(first) < 8:
        return False
    size = int.from_bytes(first[:4], "big")
    key, version = int.from_bytes(first[4:6], "big"), int.from_bytes(first[6:8], "big")
    return 8 <= size < 2**24 and 0 < key <= _KAFKA_API_KEY_MAX and version <= _KAFKA_API_VERSION_MAX


def _kafka_answer(first: bytes) -> bytes:
    """``LISTENER_NOT_FOUND``, which Kafka's clients show, if they began with ApiVersions as nearly all do; or nothing.

    A line of text would be taken for a length of a gigabyte.
    """
    if len(first) < 12 or int.from_bytes(first[4:6], "big") != _KAFKA_API_VERSIONS:
        return b""
    version = int.from_bytes(first[6:8], "big")
    response = messages.ApiVersionsResponse(error_code=ErrorCode.LISTENER_NOT_FOUND, api_keys=[])
    correlation_id = int.from_bytes(first[8:12], "big", signed=True)
    return b"".join(write_response(correlation_id, response, min(version, _KAFKA_API_VERSIONS_MAX)))


def _line(text: str) -> bytes:
    return text.encode("ascii") + b"\r\n"


def http_answer(text: str) -> bytes:
    """A response that refuses, with a sentence in ASCII."""
    body = _line(text)
    return (
        b"HTTP/1.0 400 Bad Request\r\n"
        b"Content-Type: text/plain; charset=utf-8\r\n"
        b"Content-Length: %d\r\n"
        b"Connection: close\r\n"
        b"\r\n"
        b"%s" % (len(body), body)
    )
