"""Replies of the native protocol as bytes."""

from collections.abc import Sequence
from typing import Final

from seglog_broker.listeners.request_errors import AppendOutcome, as_seglog_error, count_errors
from seglog_broker.listeners.sender import Sender
from seglog_broker.runtime import budget
from seglog_broker.runtime.metrics import ApiMetrics
from seglog_protocol.errors import SeglogError
from seglog_protocol.frame_receiver import LENGTH_SIZE, Buffer
from seglog_protocol.frames import PREFIX, encode_frame, encode_packed_prefix
from seglog_protocol.messages import (
    AppendReply,
    AppendRequest,
    FetchReply,
    Message,
    pack_fields,
    pack_reply,
    pack_reply_header,
    pack_reply_into,
    reply_header,
)

NO_ID: Final = None
"""The id in a reply to no request: the peer's bytes could not be decoded, and the connection ends."""


def encode_reply(request_id: int, reply: Message | SeglogError) -> bytes:
    """The frame of a reply. A reply that cannot be encoded becomes an error reply."""
    try:
        return encode_packed_prefix(pack_reply(request_id, reply), 0)
    except Exception as error:  # noqa: BLE001 - a bug in one reply must not end the others
        return encode_packed_prefix(pack_reply(request_id, as_seglog_error(error, type(reply).__name__)), 0)


def queue_reply(
    sender: Sender, counts: ApiMetrics, began: float, request_id: int, reply: Message | SeglogError
) -> None:
    """Send a reply with the next flush, and count it; its request was taken up at ``began``."""
    count_errors(counts.errors, reply)
    frame = encode_reply(request_id, reply)
    counts.note_answers(1, len(frame), began)
    sender.queue(frame)


def encode_append_replies(
    request_ids: Sequence[int], replies: Sequence[AppendOutcome], counts: ApiMetrics, began: float
) -> Buffer | None:
    """The frames of replies to appends, None if one is long; they and their errors are counted.

    Their requests were taken up at ``began``.
    """
    if any(map(is_long, replies)):
        return None
    frames = bytearray()
    for request_id, reply in zip(request_ids, replies):
        count_errors(counts.errors, reply)
        begin = len(frames)
        try:
            frames += _NO_PREFIX
            pack_reply_into(frames, request_id, reply)
        except Exception as error:  # noqa: BLE001 - a bug in one reply must not end the others
            del frames[begin:]
            frames += encode_reply(request_id, as_seglog_error(error, AppendRequest.api))
            continue
        size = len(frames) - begin
        PREFIX.pack_into(frames, begin, size - LENGTH_SIZE, size - PREFIX.size)
    counts.note_answers(len(request_ids), len(frames), began)
    return frames


_NO_PREFIX: Final = bytes(PREFIX.size)

RESULTS_A_TURN: Final = budget.items_of(cost=8)
"""Items of the lists of a long reply that are encoded before other tasks run."""


def is_long(reply: Message | SeglogError) -> bool:
    """Whether the reply has a list of more items than are encoded at once."""
    if isinstance(reply, AppendReply):  # nearly always
        return len(reply.partitions) > RESULTS_A_TURN
    if isinstance(reply, SeglogError):
        return False
    lists = (value for name in reply.__struct_fields__ if isinstance(value := getattr(reply, name), list))
    return any(len(items) > RESULTS_A_TURN for items in lists)


_latest_fields: tuple[FetchReply | None, bytes] = None, b""
"""The fetch reply that was encoded last: one append often wakes many fetches that get the same reply."""


def encode_fetch_prefix(request_id: int, reply: FetchReply, payload_size: int) -> bytes:
    """The frame of a reply to a fetch, up to its payload."""
    global _latest_fields
    latest, fields = _latest_fields
    if latest is not reply:
        fields = pack_fields(reply)
        _latest_fields = reply, fields
    return encode_packed_prefix(pack_reply_header(request_id, fields), payload_size)


def encode_last_error(error: SeglogError) -> bytes:
    """The last frame of a connection: an error without a request id."""
    return encode_frame(reply_header(0, error) | {"id": NO_ID})
