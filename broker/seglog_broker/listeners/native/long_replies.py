"""Replies with long lists, encoded in parts, between which other tasks run."""

from collections.abc import Awaitable, Callable, Sequence

from seglog_broker.listeners.native.replies import RESULTS_A_TURN, encode_reply, is_long
from seglog_broker.listeners.request_errors import AppendOutcome, count_errors
from seglog_broker.runtime.metrics import ApiMetrics
from seglog_protocol.errors import SeglogError
from seglog_protocol.frame_receiver import Buffer
from seglog_protocol.frames import encode_packed_prefix
from seglog_protocol.messages import Message, pack_long_fields, pack_reply_header


async def encode_long_reply(
    request_id: int, reply: Message, payload_size: int, turn: Callable[[], Awaitable[None]]
) -> bytes | None:
    """The frame of a long reply up to its payload, encoded with a ``turn`` between two parts; None for a short one.

    Raises LocalProtocolError for a reply too long for a frame.
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


async def encode_long_append_replies(
    request_ids: Sequence[int],
    replies: Sequence[AppendOutcome],
    counts: ApiMetrics,
    began: float,
    turn: Callable[[], Awaitable[None]],
) -> Buffer:
    """As ``encode_append_replies``, for replies of which some are long."""
    frames = []
    for request_id, reply in zip(request_ids, replies, strict=False):
        count_errors(counts.errors, reply)
        frame: bytes | None = None
        if not isinstance(reply, SeglogError):
            try:
                frame = await encode_long_reply(request_id, reply, 0, turn)
            except SeglogError as error:  # too long for a frame
                frame = encode_reply(request_id, error)
        frames.append(frame or encode_reply(request_id, reply))
    joined = b"".join(frames)
    counts.note_answers(len(frames), len(joined), began)
    return joined
