"""Requests of either wire as faults see them: what they ask for, and the bytes of an error that answers them.

The error of a native request stands with each thing that it names, where its reply has results one by one, as the
broker's own errors do; else it is that of the request as a whole.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final, NamedTuple, get_args, get_origin

import msgspec

from seglog_broker.listeners.kafka.error_responses import error_response
from seglog_protocol import messages as native_messages
from seglog_protocol.errors import RemoteProtocolError, SeglogError
from seglog_protocol.frame_receiver import FRAME_BYTES_MAX, LENGTH_SIZE, FrameReceiver
from seglog_protocol.frames import Frame, FrameReader, encode_packed_prefix
from seglog_protocol.kafka import RequestHeader, WireError, messages, read_request, read_request_header, write_response
from seglog_protocol.kafka.definitions import apis
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


class ClientRequest(ABC):
    """A request that has come, whole and well-formed."""

    api: str
    """Kafka's name of the api, or that of the native protocol."""
    client_id: str
    """What the client calls itself; empty where the request does not say."""
    is_append: bool
    """Whether it brings records."""
    is_silent: bool
    """Whether it gets no reply, so that an error ends the connection."""
    request: object

    def names(self, topic: str, name_of: TopicName) -> bool:
        """Whether it names ``topic``, by its name or its id."""
        return any(found == topic for found in _topics(self.request, name_of))

    @abstractmethod
    def refusal(self, error: Any) -> bytes:
        """The frame that answers it with ``error``."""

    @abstractmethod
    def reader(self) -> FrameReceiver:
        """Finds frames in what is sent to its client."""

    @abstractmethod
    def is_answered_by(self, frame: Any) -> bool:
        """Whether a frame of ``reader`` is its reply."""


class KafkaClientRequest(ClientRequest):
    """A request of Kafka's wire."""

    def __init__(self, header: RequestHeader, request: KafkaRequest) -> None:
        self.api = apis()[header.api_key].request.removesuffix("Request")
        self.client_id = header.client_id or ""
        self.is_append = isinstance(request, messages.ProduceRequest)
        self.is_silent = isinstance(request, messages.ProduceRequest) and request.acks == 0
        self.request = request
        self._header = header

    def refusal(self, error: ErrorCode) -> bytes:
        """As ``ClientRequest.refusal``, with an ErrorCode."""
        header, request = self._header, self.request
        assert isinstance(request, KafkaRequest)
        response = error_response(request, header.version, error, f"{self.api} fails because a test asked for it")
        return b"".join(write_response(header.correlation_id, response, header.version))

    def reader(self) -> FrameReceiver:
        """As ``ClientRequest.reader``."""
        return KafkaFrameReader(small_frame_bytes_max=FRAME_BYTES_MAX, frame_bytes_min=RESPONSE_BYTES_MIN)

    def is_answered_by(self, frame: memoryview) -> bool:
        """As ``ClientRequest.is_answered_by``."""
        return int.from_bytes(frame[:RESPONSE_BYTES_MIN], signed=True) == self._header.correlation_id


class NativeClientRequest(ClientRequest):
    """A request of the native protocol."""

    def __init__(self, request_id: int, request: Request) -> None:
        self.api = request.api
        self.client_id = request.client if isinstance(request, HelloRequest) else ""
        self.is_append = isinstance(request, AppendRequest)
        self.is_silent = isinstance(request, AppendRequest) and request.ack == "none"
        self.request = request
        self._request_id = request_id

    def refusal(self, error: SeglogError) -> bytes:
        """As ``ClientRequest.refusal``, with a SeglogError."""
        assert isinstance(self.request, Request)
        return encode_packed_prefix(pack_reply(self._request_id, error_reply(self.request, error)), 0)

    def reader(self) -> FrameReceiver:
        """As ``ClientRequest.reader``."""
        return FrameReader()

    def is_answered_by(self, frame: Any) -> bool:
        """As ``ClientRequest.is_answered_by``."""
        return bool(frame.header.get("id") == self._request_id)


class CarriedClientRequest(KafkaClientRequest):
    """A request of Kafka's wire within a native one: it fails as on Kafka's."""

    def __init__(self, request_id: int, payload: memoryview) -> None:
        header = read_request_header(payload)
        super().__init__(header, read_request(header, payload))
        self._request_id = request_id

    def refusal(self, error: ErrorCode) -> bytes:
        """The frame that answers it with ``error``, within a native reply."""
        response = super().refusal(error)[LENGTH_SIZE:]
        return encode_packed_prefix(pack_reply(self._request_id, KafkaReply()), len(response)) + response

    reader = NativeClientRequest.reader
    is_answered_by = NativeClientRequest.is_answered_by


def open_frame(frame: Frame | memoryview) -> ClientRequest | None:
    """The request in a frame of either wire; None for one that the broker refuses."""
    try:
        if not isinstance(frame, Frame):
            header = read_request_header(frame)
            return KafkaClientRequest(header, read_request(header, frame))
        found = open_request(frame.packed)
        if isinstance(found.request, CarriedRequest):
            return CarriedClientRequest(found.request_id, frame.payload)
    except (RemoteProtocolError, WireError):
        return None
    return None if isinstance(found.request, SeglogError) else NativeClientRequest(found.request_id, found.request)


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


class _Results(NamedTuple):
    """The results of a reply."""

    reply: type[Message]
    name: str
    """The list of the reply that they stand in."""
    item: type[Message]
    keys: tuple[str, ...]
    """The fields of ``item`` that say what a result is about."""
    asked: str
    """The list of the request that they answer."""
    numbers: tuple[str, ...]
    """Other fields that the reply must have."""


def error_reply(request: Request, error: SeglogError) -> Message | SeglogError:
    """The reply that answers ``request`` with ``error``."""
    results = _results_of(type(request).api)
    things = None if results is None else getattr(request, results.asked)
    if results is None or not things:
        return error
    items = [results.item(**{key: _key(thing, key) for key in results.keys}, error=error) for thing in things]
    return results.reply(**dict.fromkeys(results.numbers, 0), **{results.name: items})


def _key(thing: Any, key: str) -> Any:
    """What a result says of a thing that was named by ``key``, or by a text alone."""
    found = thing if isinstance(thing, str) else getattr(thing, key)
    if found is None and key != "instance_id":
        return -1 if key == "partition" else ""  # all of a topic; a static member
    return found


@cache
def _results_of(api: str) -> _Results | None:
    """The results in the reply to an api; None if it has none with errors of their own, for one list of the request."""
    asked = native_messages.REQUESTS[api]
    name = asked.__name__
    reply: type[Message] = getattr(native_messages, name.removesuffix("Request") + "Reply")
    for field in msgspec.structs.fields(reply):
        [item] = get_args(field.type)[:1] if get_origin(field.type) is list else [None]
        if isinstance(item, type) and issubclass(item, Message):
            names = [inner.name for inner in msgspec.structs.fields(item)]
            if "error" in names and _ASKED.get(api, field.name) in asked.__struct_fields__:
                keys = tuple(key for key in _KEYS if key in names)
                others = (other for other in msgspec.structs.fields(reply) if other.required)
                numbers = tuple(other.name for other in others if other.name != field.name)
                return _Results(reply, field.name, item, keys, _ASKED.get(api, field.name), numbers)
    return None
