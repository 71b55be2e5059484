"""Hints for peers whose first bytes are not seglog's native protocol, so that people see why they are not served.

A wrong guess does no harm: the connection is closed either way.
"""

from typing import Final, NamedTuple

_OUR_PORT: Final = "This is the native port of a seglog broker, not"

_HTTP_METHODS: Final = (b"GET ", b"POST ", b"HEAD ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"CONNECT ", b"PRI ")

_KAFKA_API_KEY_MAX: Final = 100
_KAFKA_API_VERSION_MAX: Final = 30


class Hint(NamedTuple):
    """The protocol that the peer seems to speak, for the log, and the bytes to answer with."""

    kind: str
    answer: bytes


def hint_for(first: bytes) -> Hint:
    """The hint for a connection that began with ``first``: any bytes, or none."""
    if first.startswith(_HTTP_METHODS):
        return Hint(
            "http", _http_answer(_line(f"{_OUR_PORT} a web server; use a seglog client, such as `seglog ping`."))
        )
    if first[:2] == b"\x16\x03":
        return Hint("tls", _line(f"{_OUR_PORT} a TLS one; connect without TLS."))
    if _looks_like_kafka(first):
        return Hint("kafka", _line(f"{_OUR_PORT} Kafka's; Kafka clients are not served here, use a seglog client."))
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


def _line(text: str) -> bytes:
    return text.encode("ascii") + b"\r\n"


def _http_answer(body: bytes) -> bytes:
    return (
        b"HTTP/1.0 400 Bad Request\r\n"
        b"Content-Type: text/plain; charset=utf-8\r\n"
        b"Content-Length: %d\r\n"
        b"Connection: close\r\n"
        b"\r\n"
        b"%s" % (len(body), body)
    )
