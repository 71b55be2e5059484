"""Requests of either wire as faults see them: what they ask for, and the bytes of an error that answers them.

The error of a native request stands with each thing that it names, where its reply has results one by one, as the
broker's own errors do; else it is that of the request as a whole.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, get_args, get_origin

import msgspec

from seglog_broker.listeners.kafka.error_responses import error_response
from seglog_protocol import messages as native_messages
from seglog_protocol.errors import RemoteProtocolError, SeglogError
from seglog_protocol.frame_receiver import FRAME_BYTES_MAX, LENGTH_SIZE, FrameReceiver
from seglog_protocol.frames import Frame, FrameReader, encode_packed_prefix
from seglog_protocol.kafka import RequestHeader, WireError, messages, read_request, read_request_header, write_response
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.kafka.frames import RESPONSE_BYTES_MIN, KafkaFrameReader
from seglog_protocol.kafka.structs import Request as KafkaRequest
from seglog_protocol.kafka.structs import Struct
from seglog_protocol.messages import AppendRequest, HelloRequest, KafkaReply, Message, Request, open_request, pack_reply
from seglog_protocol.messages import KafkaRequest as CarriedRequest

TopicName = Callable[[bytes], str | None]
"""The name of a topic by the sixteen bytes of its id; None if there is none."""

_TOPIC_FIELDS: Final = frozenset(
    {"name", "names", "resource_name", "subscribed_topic_names", "topic", "topic_name", "topic_names"}
)
"""Fields with names of topics; a name of something else is seldom also that of a topic."""


class ClientRequest:
    """A request that has come, whole and well-formed, on either wire.

    ``request_id`` is None on Kafka's wire, and ``header`` None for a native request. With both it is one of Kafka's
    wire within a native one, which fails as on Kafka's.
    """

    def __init__(self, request: KafkaRequest | Request, request_id: int | None, header: RequestHeader | None) -> None:
        self.request = request
        self._request_id = request_id
        self._header = header
        self.api = request.api if isinstance(request, Request) else type(request).__name__.removesuffix("Request")
        """Kafka's name of the api, or that of the native protocol."""
        self.client_id = (header and header.client_id) or (request.client if isinstance(request, HelloRequest) else "")
        """The name that the client gives itself; empty where the request does not say."""
        self.is_append = isinstance(request, messages.ProduceRequest | AppendRequest)
        """Whether it brings records."""
        self.is_silent = (isinstance(request, messages.ProduceRequest) and request.acks == 0) or (
            isinstance(request, AppendRequest) and request.ack == "none"
        )
        """Whether it gets no reply, so that an error ends the connection."""

    def names(self, topic: str, name_of: TopicName) -> bool:
        """Whether it names ``topic``, by its name or its id."""
        return any(found == topic for found in _topics(self.request, name_of))

    def refusal(self, error: ErrorCode | SeglogError) -> bytes:
        """The frame that answers it with ``error``: an ErrorCode if the api is one of Kafka, else a SeglogError."""
        if isinstance(self.request, Request):
            assert isinstance(error, SeglogError)
            assert self._request_id is not None
            return encode_packed_prefix(pack_reply(self._request_id, error_reply(self.request, error)), 0)
        header = self._header
        assert isinstance(error, ErrorCode)
        assert header is not None
        said = f"{self.api} fails because a test asked for it"
        response = error_response(self.request, header.version, error, said)
        frame = b"".join(write_response(header.correlation_id, response, header.version))
        if self._request_id is None:
            return frame
        carried = frame[LENGTH_SIZE:]
        return encode_packed_prefix(pack_reply(self._request_id, KafkaReply()), len(carried)) + carried

    def reader(self) -> FrameReceiver:
        """Finds frames in what is sent to its client."""
        if self._request_id is not None:
            return FrameReader()
        return KafkaFrameReader(small_frame_bytes_max=FRAME_BYTES_MAX, frame_bytes_min=RESPONSE_BYTES_MIN)

    def is_answered_by(self, frame: Any) -> bool:
        """Whether a frame of ``reader`` is its reply."""
        if self._request_id is not None:
            return bool(frame.header.get("id") == self._request_id)
        assert self._header is not None
        return int.from_bytes(frame[:RESPONSE_BYTES_MIN], signed=True) == self._header.correlation_id


def open_frame(frame: Frame | memoryview) -> ClientRequest | None:
    """The request in a frame of either wire; None for one that the broker refuses."""
    try:
        if not isinstance(frame, Frame):
            return _of_kafka(frame, None)
        found = open_request(frame.packed)
        if isinstance(found.request, CarriedRequest):
            return _of_kafka(frame.payload, found.request_id)
    except (RemoteProtocolError, WireError):
        return None
    return None if isinstance(found.request, SeglogError) else ClientRequest(found.request, found.request_id, None)


def _of_kafka(payload: memoryview, request_id: int | None) -> ClientRequest:
    header = read_request_header(payload)
    return ClientRequest(read_request(header, payload), request_id, header)


def _topics(value: object, name_of: TopicName, field: str = "") -> Iterator[str]:
    """The names of topics in a part of a request."""
    if isinstance(value, str):
        if field in _TOPIC_FIELDS:
            yield value
    elif isinstance(value, bytes):
        if field == "topic_id" and (name := name_of(value)) is not None:
            yield name
    elif isinstance(value, list):
        for item in value:
            yield from _topics(item, name_of, field)
    elif isinstance(value, Struct | msgspec.Struct):
        names = value.__slots__ if isinstance(value, Struct) else value.__struct_fields__
        for name in names:
            yield from _topics(getattr(value, name), name_of, name)


_KEYS: Final = ("topic", "partition", "group", "member_id", "instance_id")
"""Fields of results that say what they are about."""

_ASKED: Final = {"committed_offsets": "partitions"}
"""By api: the list of the request that the results answer, where it has another name."""


def error_reply(request: Request, error: SeglogError) -> Message | SeglogError:
    """The reply that answers ``request`` with ``error``."""
    reply: type[Message] = getattr(native_messages, type(request).__name__.removesuffix("Request") + "Reply")
    fields = msgspec.structs.fields(reply)
    for field in fields:
        [item] = get_args(field.type)[:1] if get_origin(field.type) is list else [None]
        things = getattr(request, _ASKED.get(request.api, field.name), None)
        if things and isinstance(item, type) and issubclass(item, Message) and "error" in item.__struct_fields__:
            keys = [key for key in _KEYS if key in item.__struct_fields__]
            results = [item(**{key: _key(thing, key) for key in keys}, error=error) for thing in things]
            others = [other.name for other in fields if other.required and other.name != field.name]  # numbers
            return reply(**dict.fromkeys(others, 0), **{field.name: results})
    return error


def _key(thing: Any, key: str) -> Any:
    """What a result says of a thing that was named by ``key``, or by a text alone."""
    found = thing if isinstance(thing, str) else getattr(thing, key)
    if found is None and key != "instance_id":
        return -1 if key == "partition" else ""  # all of a topic; a static member
    return found
