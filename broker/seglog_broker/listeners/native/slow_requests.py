"""Native requests that take several turns of the loop, or wait, fetches and long replies among them: jobs of a task."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Final

import msgspec

from seglog_broker.api.broker import Broker
from seglog_broker.api.monitoring.service import answer_samples
from seglog_broker.listeners.connection import Connection
from seglog_broker.listeners.connection_task import take_memory_for, wait_for
from seglog_broker.listeners.end_reasons import EndReason
from seglog_broker.listeners.native.hello import authenticate, reply_to
from seglog_broker.listeners.native.permissions import Refused, answered
from seglog_broker.listeners.native.replies import RESULTS_A_TURN, Fetches, encode_reply, is_long, queue_reply
from seglog_broker.listeners.request_errors import AppendOutcome, as_seglog_error, count_errors
from seglog_broker.listeners.sending import flush, send_frame, send_within
from seglog_broker.listeners.usage import Usage
from seglog_broker.partitions.fetch_purgatory import Waiter
from seglog_broker.partitions.fetch_response import FetchAnswer
from seglog_broker.runtime.metrics import ApiMetrics
from seglog_broker.runtime.response_memory import Room
from seglog_protocol import errors, messages
from seglog_protocol.access import Kind, Operation
from seglog_protocol.frame_receiver import Buffer
from seglog_protocol.frames import HEADER_BYTES_MAX, Frame, encode_packed_prefix

LISTED: Final[frozenset[str]] = frozenset(
    request.api
    for request in (
        messages.CommittedOffsetsRequest,
        messages.DescribeGroupRequest,
        messages.ExplainSegmentsRequest,
        messages.ListGroupsRequest,
        messages.TopicsRequest,
        messages.TransactionsRequest,
    )
)
"""The apis whose replies may be long whatever is asked: they tell of all that there is."""

FEW_BYTES: Final = 4 * 1024
"""A request below this size names a few hundred things at most, so its reply is small."""

_WAITING: Final = (messages.JoinGroupRequest, messages.SyncGroupRequest)
"""Requests that wait for other members of a group: they take none of the places for large replies while they wait."""


def serve_later(connection: Connection, opened: messages.OpenedRequest | None, frame: Frame) -> None:
    """Keep a request, to be served before all others."""
    connection.serve_later((opened, frame), frame.payload, len(frame.packed) + len(frame.payload))


async def open_slowly(broker: Broker, connection: Connection, frame: Frame) -> None:
    """Decode a large header, in a turn of its own."""
    await flush(connection.sender)
    await broker.turn()
    serve_later(connection, messages.open_request(frame.packed), frame)


async def append_creating(
    broker: Broker,
    connection: Connection,
    request_id: int,
    request: messages.AppendRequest,
    frame: Frame,
    barred: Mapping[str, errors.SeglogError],
) -> None:
    """Serve an append for which topics have to be created first, but for those that are ``barred``."""
    await take_memory_for(connection, frame.payload)
    await flush(connection.sender)
    missing = [name for name in broker.missing_topics(request) if name not in barred]
    refused = dict(barred)
    if missing and not connection.session.sees(Operation.CREATE, Kind.CLUSTER):
        for name in missing:
            refusal = connection.session.refusal(Operation.CREATE, Kind.TOPIC, name, is_new=True)
            refused |= {} if refusal is None else {name: refusal}
    allowed = [item for item in request.partitions if item.topic not in refused]
    missing = [name for name in missing if name not in refused]
    try:
        connection.usage.may_change(len(missing) * broker.config.num_partitions)
        refused |= await broker.create_missing(msgspec.structs.replace(request, partitions=allowed))
    except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
        refused |= dict.fromkeys(missing, as_seglog_error(error, messages.AppendRequest.api))
    connection.append([request_id], [request], [frame.payload], frame.payload, refused)


async def serve_slowly(
    broker: Broker,
    connection: Connection,
    client_host: str,
    request_id: int,
    request: messages.Request,
    refused: Refused | None,
    size: int,
) -> None:
    """Serve a request of ``size`` bytes whose reply waits for something, or is long, but for what is ``refused`` of it.

    A reply that may be long is made when there is a place for it, and readers of such may not stall.
    """
    counts, began = connection.counts.of(request.api), connection.began
    await flush(connection.sender)
    with closing(broker.response_memory.room(connection.transport.host)) as room:
        if (request.api in LISTED or size > FEW_BYTES) and not isinstance(request, _WAITING):
            room.add(HEADER_BYTES_MAX)
            await room.wait()
        try:
            reply, payload = await _answer(broker, connection, client_host, request, room)
            reply = reply if refused is None else refused.whole(reply)
            head = await encode_long_reply(request_id, reply, len(payload), broker.turn)
            if head is None:
                head = encode_packed_prefix(messages.pack_reply(request_id, reply), len(payload))
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            queue_reply(connection.sender, counts, began, request_id, as_seglog_error(error, request.api))
            if connection.session.has_failed:
                connection.end(EndReason.AUTHENTICATION_FAILED)
            return
        count_errors(counts.errors, reply)
        counts.note_answers(1, len(head) + len(payload), began)
        if room.used:
            await send_within(room, connection.sender, [head, payload])
        else:
            connection.sender.queue(head + payload)


async def _answer(
    broker: Broker, connection: Connection, client_host: str, request: messages.Request, room: Room
) -> tuple[messages.Message, bytes]:
    """The reply and its payload. A wait for other members of a group ends when the peer leaves.

    The memory of a page of metrics, the longest of all replies, is counted in ``room`` while it is made.
    """
    if isinstance(request, messages.AuthenticateRequest):
        return await authenticate(connection, request), b""
    if isinstance(request, messages.HelloRequest):
        return await reply_to(broker, connection, request), b""
    if isinstance(request, messages.SamplesRequest):
        return await answer_samples(broker.monitoring, request, broker.turn, room)
    usage = connection.usage
    count = _changed_partitions(broker, request) if usage.is_counted else 0
    waiting = partial(_wait_to_change, usage, count)
    if not (usage.may_change(count, is_strict=True) or await wait_for(connection, waiting, until_stop=True)):
        raise errors.BrokerStoppingError("the broker stops before your quota lets topics be changed; connect again")
    answering = partial(answered, broker, connection.session, request, client_host)
    if not isinstance(request, _WAITING):
        return await answering()
    found = await wait_for(connection, answering)
    if found is None:
        raise errors.RequestCancelledError("the peer has left")
    return found


async def _wait_to_change(usage: Usage, partitions: int) -> bool:
    """Count partitions that are to be created or deleted as soon as the client is within its quota; True then."""
    while not usage.may_change(partitions, is_strict=True):
        await usage.wait()
    return True


def _changed_partitions(broker: Broker, request: messages.Request) -> int:
    """How many partitions a request creates or deletes."""
    if not isinstance(request, messages.CreateTopicRequest | messages.AlterTopicRequest | messages.DeleteTopicRequest):
        return 0
    topic = broker.directory.registry.topics.get(request.topic)
    there = 0 if topic is None else topic.partitions
    if isinstance(request, messages.DeleteTopicRequest):
        return there
    return max(0, (request.partitions or (0 if there else broker.config.num_partitions)) - there)


async def answer(
    fetches: Fetches,
    request_id: int,
    request: messages.FetchRequest,
    waiter: Waiter,
    began: float,
    refused: Refused | None = None,
) -> None:
    """Wait for the answer to a fetch and send it, with the errors of what is ``refused`` of it."""
    found: FetchAnswer | None = None
    failure: errors.SeglogError | None = None
    try:
        try:
            found = await fetches.broker.fetch(request, waiter)
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            if not (waiter.is_ended and isinstance(error, errors.RequestCancelledError)):
                failure = as_seglog_error(error, messages.FetchRequest.api)
        fetches.waiting.pop(request_id, None)
        if request_id in fetches.cancelled:  # even if an answer came just now: the cancel reply says it is ended
            del fetches.cancelled[request_id]
            failure = errors.RequestCancelledError("the fetch was cancelled, as asked")
            if found is not None:
                with found:
                    found = None
        if found is not None:
            if refused is not None:
                found.reply = refused.whole(found.reply)
            await _send(fetches, request_id, found, began)
            return
        if failure is None and fetches.stop_reason is not None:
            failure = errors.BrokerStoppingError(f"{fetches.stop_reason}; connect again")
        if failure is not None:  # else the peer has left
            fetches.queue_error(request_id, failure, began)
            await flush(fetches.sender)
    finally:
        fetches.end_fetch(request)


async def _send(fetches: Fetches, request_id: int, found: FetchAnswer, began: float) -> None:
    """Send the answer to a fetch and close it."""
    with found:
        try:
            prefix = await encode_long_reply(request_id, found.reply, found.size, fetches.broker.turn)
            prefix = fetches.encode_answer(request_id, found, began, prefix)
        except Exception as error:  # noqa: BLE001 - nothing is sent yet, so it can be answered
            fetches.queue_error(request_id, as_seglog_error(error, messages.FetchRequest.api), began)
            await flush(fetches.sender)
        else:
            await send_frame(fetches.sender, [prefix, *found.slices])


async def encode_long_reply(
    request_id: int, reply: messages.Message, payload_size: int, turn: Callable[[], Awaitable[None]]
) -> bytes | None:
    """The frame of a long reply up to its payload, encoded with a ``turn`` between two parts; None for a short one.

    Raises LocalProtocolError for a reply too long for a frame.
    """
    if not is_long(reply):
        return None
    packing = messages.pack_long_fields(reply, RESULTS_A_TURN)
    try:
        while True:
            next(packing)
            await turn()
    except StopIteration as done:
        return encode_packed_prefix(messages.pack_reply_header(request_id, done.value), payload_size)


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
        if not isinstance(reply, errors.SeglogError):
            try:
                frame = await encode_long_reply(request_id, reply, 0, turn)
            except errors.SeglogError as error:  # too long for a frame
                frame = encode_reply(request_id, error)
        frames.append(frame or encode_reply(request_id, reply))
    joined = b"".join(frames)
    counts.note_answers(len(frames), len(joined), began)
    return joined
