"""From what a request came to, a result or any exception, to the bytes of its reply."""

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from seglog_broker.storage.io.os_errors import storage_error, why
from seglog_protocol.errors import OutOfResourcesError, SeglogError, UnknownServerError
from seglog_protocol.frames import encode_frame, encode_packed_prefix
from seglog_protocol.messages import (
    AppendReply,
    FetchReply,
    FlushReply,
    Message,
    OffsetsReply,
    TopicsReply,
    TruncateReply,
    pack_fields,
    pack_long_fields,
    pack_reply_header,
    reply_header,
)

log = structlog.get_logger()

NO_ID: Final = None
"""In a reply that belongs to no request: the peer's bytes could not be understood, and the connection ends."""


def encode_reply(request_id: int, reply: Message | SeglogError, payload: bytes = b"") -> bytes:
    """The frame of a reply. A reply that cannot be written becomes one that says so."""
    try:
        return encode_frame(reply_header(request_id, reply), (payload,) if payload else ())
    except Exception as error:  # noqa: BLE001 - a bug in one reply must not end the others
        return encode_frame(reply_header(request_id, as_seglog_error(error, type(reply).__name__)))


RESULTS_A_TURN: Final = 256
"""Results of a long reply that are encoded before others get their turn."""


def is_long(reply: Message | SeglogError) -> bool:
    """Whether it has more results than are encoded at once."""
    return isinstance(reply, _WITH_RESULTS) and len(reply.partitions) > RESULTS_A_TURN


async def encode_long_reply(
    request_id: int, reply: Message, payload_size: int, turn: Callable[[], Awaitable[None]]
) -> bytes | None:
    """The frame of a reply up to its payload, some results a ``turn``; None for a reply that has not many.

    Raises LocalProtocolError for one that has too many.
    """
    if not is_long(reply):
        return None
    packing = pack_long_fields(reply, RESULTS_A_TURN)
    try:
        while True:
            next(packing)
            await turn()
    except StopIteration as done:
        return encode_packed_prefix(pack_reply_header(request_id, done.value), payload_size)


_WITH_RESULTS: Final = (AppendReply, FetchReply, FlushReply, OffsetsReply, TruncateReply)

_latest_fields: tuple[FetchReply | None, bytes] = None, b""
"""The fetch reply that was encoded last: one append often wakes many who are told the same."""


def encode_fetch_prefix(request_id: int, reply: FetchReply, payload_size: int) -> bytes:
    """The frame of a reply to a fetch, up to its payload."""
    global _latest_fields
    latest, fields = _latest_fields
    if latest is not reply:
        fields = pack_fields(reply)
        _latest_fields = reply, fields
    return encode_packed_prefix(pack_reply_header(request_id, fields), payload_size)


def encode_parting(error: SeglogError) -> bytes:
    """The frame that ends a connection: an error under no id."""
    return encode_frame(reply_header(0, error) | {"id": NO_ID})


def count_errors(counts: Counter[str], reply: Message | SeglogError) -> None:
    """Add every error in ``reply`` to ``counts``, under its code: the whole's, or those of single partitions."""
    if isinstance(reply, SeglogError):
        counts[reply.code] += 1
    elif isinstance(reply, _WITH_RESULTS):
        for result in reply.partitions:
            if result.error is not None:
                counts[result.error.code] += 1
    elif isinstance(reply, TopicsReply):
        counts.update(error.code for error in reply.unknown)


def as_seglog_error(error: Exception, api: str) -> SeglogError:
    """What to answer when serving ``api`` raised ``error``; what is not the asker's fault is logged here."""
    if isinstance(error, SeglogError):
        return error
    if isinstance(error, OSError):
        log.error("request_failed", api=api, error=why(error))
        return storage_error(f"the broker's disk is in the way: {error.strerror or type(error).__name__}", error)
    if isinstance(error, MemoryError):
        log.error("request_failed", api=api, error="out of memory")
        return OutOfResourcesError("the broker has no memory for this request now; try again later")
    log.error("request_crashed", api=api, exc_info=error)
    return UnknownServerError(f"the broker met a bug of its own while serving {api}; its log has the traceback")
