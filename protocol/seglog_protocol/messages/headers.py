"""Messages to the headers of frames and back.

A header goes straight from its bytes into the struct of its api and back. One that is refused is not decoded to a map,
which can take a tenth of a second for a mebibyte: of a request its id and what it names are read, of a reply its error.

Values of a request that msgpack has no type for are refused: of a date msgspec would send a text of its own choice.
"""

import operator
from collections.abc import Generator, Mapping, Sequence
from functools import cache, reduce
from typing import Annotated, Any, Final, TypeVar

import msgspec

from seglog_protocol import errors
from seglog_protocol.frame_receiver import Buffer
from seglog_protocol.frames import COLLECTION_PAUSED_BYTES, decode_map, decode_value, encode_value, without_collection
from seglog_protocol.messages.append import AppendReply, AppendResult
from seglog_protocol.messages.base import Int63, Message, Request, as_wire
from seglog_protocol.messages.explain import ExplainedSegment
from seglog_protocol.messages.hello import REQUESTS
from seglog_protocol.messages.hooks import REFUSED, encode_other
from seglog_protocol.messages.refusals import cut, refusal, shown
from seglog_protocol.messages.samples import MetricFamily
from seglog_protocol.messages.topics import TopicDescription

MessageT = TypeVar("MessageT", bound=Message)

NAMED_BYTES_MAX: Final = 32 * 1024
"""A larger value for an api, a version or an ack is not decoded to be named in a refusal."""

_ENVELOPE: Final = frozenset({"id", "api", "v"})
_NIL: Final = encode_value(None)
_PACKED_ID: Final = encode_value("id")

_encoder: Final = msgspec.msgpack.Encoder(enc_hook=encode_other)
_encode: Final = _encoder.encode


# --- Requests ---------------------------------------------------------------------------------------------------------


def request_header(request_id: int, request: Request) -> dict[str, Any]:
    """The header of a request's frame, as a map."""
    return {"id": request_id, "api": request.api, "v": request.version_needed()} | request.to_wire()


def pack_request(request_id: int, request: Request) -> bytes:
    """The packed ``request_header``.

    Raises OverflowError for a number that msgpack has no room for, and InvalidRequestError for a value of a type that
    it has not.
    """
    fields = _encode(request) if request.is_plain else _packed_of_any(request)
    begin, at = _with_more(fields, len(_ENVELOPE))
    named = _packed_name(request.api, request.version_needed())
    return b"".join((begin, _PACKED_ID, _encode(request_id), named, fields[at:]))


def _packed_of_any(request: Request) -> bytes:
    """The packed fields; a subclass of ``str`` is packed as ``str``, an integer of numpy as ``int``."""
    try:
        return encode_value(request.to_wire())
    except (TypeError, ValueError):
        for name in request.__struct_fields__:
            value = getattr(request, name)
            try:
                encode_value(as_wire(value))
            except (TypeError, ValueError) as error:
                told = f"field {shown(name)} is {shown(value)}, which cannot be sent, text or a number can: {error}"
                raise errors.InvalidRequestError(told, field=name) from error
        raise


@cache
def _packed_name(api: str, version: int) -> bytes:
    return b"".join(map(encode_value, ("api", api, "v", version)))


class OpenedRequest(msgspec.Struct, frozen=True):
    """A request as it came, or the error to answer it with; ``api`` and ``ack`` are what it names in either case."""

    request_id: int
    request: Request | errors.SeglogError
    api: Any
    ack: Any

    def accepted(self) -> Request:
        """The request. Raises the error."""
        if isinstance(self.request, errors.SeglogError):
            raise self.request
        return self.request


def open_request(packed: Buffer) -> OpenedRequest:
    """The request in a packed header; its class is one of its own below that of the api.

    Raises RemoteProtocolError when ``packed`` is no header of a request: no map with text keys, or without a valid id.
    """
    found = _decoded(packed, Request)
    if found is not None and (found.v == found.version or found.version_needed() <= found.v):
        return OpenedRequest(found.id, found, found.api, getattr(found, "ack", None))
    return _refused(packed)


class _RequestHead(msgspec.Struct, gc=False):
    """The fields of a header that every request has; the rest is not decoded."""

    id: Int63
    api: msgspec.Raw = msgspec.Raw(_NIL)
    v: msgspec.Raw = msgspec.Raw(_NIL)
    ack: msgspec.Raw = msgspec.Raw(_NIL)


_request_head: Final = msgspec.msgpack.Decoder(_RequestHead)


def _refused(packed: Buffer) -> OpenedRequest:
    """``open_request`` of a header that is no request."""
    try:
        head = _request_head.decode(packed)
    except msgspec.ValidationError as error:
        raise errors.RemoteProtocolError(
            f"the header is a map with an id, a whole number, 0 or more: {str(error)[:100]}"
        ) from error
    except REFUSED as error:
        raise errors.RemoteProtocolError(f"the header is not valid msgpack: {str(error)[:100]}") from error
    api, version, ack = (_small_value(raw) for raw in (head.api, head.v, head.ack))
    refused: errors.SeglogError
    try:
        _request_class(api, version)
        found = _decode(packed, Request)
        refused = _newer_field(api, found.version_needed(), version)
    except errors.SeglogError as error:
        refused = errors.without_frames(error)
    except REFUSED as error:
        refused = refusal(error)
    return OpenedRequest(head.id, refused, api, ack)


def _small_value(raw: msgspec.Raw) -> Any:
    """The value, as text about its size if it is large. Raises RemoteProtocolError."""
    data = memoryview(raw)
    return decode_value(data, "header") if len(data) <= NAMED_BYTES_MAX else f"({len(data)} bytes)"


def _any_request() -> Any:
    """The requests of all apis as one type, told apart by ``api``; they have ``id`` and ``v`` as well."""
    opened = (
        msgspec.defstruct(
            request.__name__,
            [("id", Int63), ("v", Annotated[int, msgspec.Meta(ge=1, le=request.version)])],
            bases=(request,),
            kw_only=True,
            tag_field="api",
            tag=api,
        )
        for api, request in REQUESTS.items()
    )
    return reduce(operator.or_, opened)


def _request_class(api: Any, version: Any) -> type[Request]:
    """The class of an api's requests. Raises UnsupportedApiError or UnsupportedVersionError."""
    cls = REQUESTS.get(api) if isinstance(api, str) else None
    if cls is None:
        raise errors.UnsupportedApiError(f"no api {shown(api)}; there are {', '.join(REQUESTS)}", api=cut(api))
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= cls.version:
        raise errors.UnsupportedVersionError(
            f"{api} is spoken in versions 1 to {cls.version}, not {shown(version)}",
            api=api,
            minimum=1,
            maximum=cls.version,
        )
    return cls


def _newer_field(api: str, needed: int, version: int) -> errors.InvalidRequestError:
    return errors.InvalidRequestError(
        f"a field of {api} in version {needed} is unknown in version {version}, which was asked"
    )


# --- Replies ----------------------------------------------------------------------------------------------------------


def reply_header(request_id: int, reply: Message | errors.SeglogError) -> dict[str, Any]:
    """The header of a reply's frame, as a map."""
    if isinstance(reply, errors.SeglogError):
        return {"id": request_id, "error": errors.error_to_wire(reply)}
    fields = reply.to_wire()
    assert "id" not in fields, "a reply's field must not hide the id it is matched by"
    return {"id": request_id} | fields


def pack_reply(request_id: int, reply: Message | errors.SeglogError) -> bytes:
    """The packed ``reply_header``."""
    if isinstance(reply, errors.SeglogError):
        return encode_value(reply_header(request_id, reply))
    return pack_reply_header(request_id, _encode(reply))


def pack_reply_into(buffer: bytearray, request_id: int, reply: Message | errors.SeglogError) -> None:
    """Add the packed ``reply_header`` to ``buffer``."""
    if type(reply) is AppendReply:  # nearly always, and many in a row
        identified = _IdentifiedAppendReply(request_id, reply.partitions, reply.partition_counts, reply.throttle_ms)
        _encoder.encode_into(identified, buffer, -1)
    else:
        buffer += pack_reply(request_id, reply)


class _IdentifiedAppendReply(Message):
    id: int
    partitions: list[AppendResult]
    partition_counts: dict[str, int] | None = None
    throttle_ms: int | None = None


def pack_fields(message: Message) -> bytes:
    """The packed fields of a message, without an id, for replies that go to many requests."""
    packed = _encode(message)
    if packed[0] < 0x90:
        return packed
    begin, at = _with_more(packed, 0)
    return begin + packed[at:]


def pack_long_fields(reply: Message, a_turn: int) -> Generator[None, None, bytes]:
    """``pack_fields`` of a reply with long lists; yields after every ``a_turn`` of their items."""
    packed = bytearray()
    count = done = 0
    for name in reply.__struct_fields__:
        value = getattr(reply, name)
        if value is None:
            continue
        count += 1
        packed += encode_value(name)
        if not isinstance(value, list):
            _encoder.encode_into(value, packed, -1)
            continue
        packed += _packed_count(len(value))
        for item in value:
            _encoder.encode_into(item, packed, -1)
            done += 1
            if done % a_turn == 0:
                yield
    return _packed_entries(count) + packed


def _packed_count(count: int) -> bytes:
    """How a msgpack list of so many items begins."""
    if count < 16:
        return bytes((0x90 + count,))
    return b"\xdc" + count.to_bytes(2, "big") if count < 2**16 else b"\xdd" + count.to_bytes(4, "big")


def pack_reply_header(request_id: int, fields: bytes) -> bytes:
    """The packed ``reply_header``, from fields packed by ``pack_fields``."""
    begin, at = _with_more(fields, 1)
    return b"".join((begin, _PACKED_ID, _encode(request_id), fields[at:]))


def _with_more(fields: bytes, added: int) -> tuple[bytes, int]:
    """How a packed map begins that has ``added`` more entries, and where the entries of ``fields`` begin."""
    first = fields[0]
    # Of a struct with more than 15 fields msgspec packs that number in three bytes, also where so many are not sent.
    count, at = (first - 0x80, 1) if first < 0x90 else (int.from_bytes(fields[1:3], "big"), 3)
    count += added
    return _packed_entries(count), at


def _packed_entries(count: int) -> bytes:
    """How a msgpack map of so many entries begins."""
    return _FEW_ENTRIES[count] if count < 16 else b"\xde" + count.to_bytes(2, "big")


_FEW_ENTRIES: Final = tuple(bytes((0x80 + count,)) for count in range(16))


class _ReplyHead(msgspec.Struct, gc=False):
    id: int | None = None


_reply_head: Final = msgspec.msgpack.Decoder(_ReplyHead)


def reply_id_of(packed: Buffer) -> int | None:
    """The id in the packed header of a reply, the rest of which is not looked into; None when there is none."""
    try:
        return _reply_head.decode(packed).id
    except REFUSED:
        return None


def decode_reply(header: Mapping[str, Any] | Buffer, cls: type[MessageT]) -> MessageT:
    """The reply of type ``cls`` in a frame's header, packed or as a map. Raises the error that it holds instead.

    Raises RemoteProtocolError when it holds neither.
    """
    if not isinstance(header, Mapping):
        # An error, at any depth, has a key that would be skipped here as an unknown one.
        found: MessageT | None = None if _ERROR in bytes(header) else _decoded(header, cls)
        if found is not None:
            return found
        header = decode_map(header, "header")
    error = header.get("error")
    if error is not None:
        raise errors.error_from_wire(error if isinstance(error, Mapping) else {})
    try:
        return cls.from_wire(header)
    except errors.InvalidRequestError as bad:
        raise errors.RemoteProtocolError(f"the broker's answer is not understood: {bad.message}") from bad


_ERROR: Final = b"error"


# --- Straight from bytes ----------------------------------------------------------------------------------------------


def _decoded(packed: Buffer, kind: Any) -> Any:
    """The value of type ``kind``; None for bytes that msgspec refuses, which may be one all the same."""
    try:
        return _decode(packed, kind)
    except REFUSED:
        return None


def _decode(packed: Buffer, kind: Any) -> Any:
    """The value of type ``kind``. Raises what is ``REFUSED``."""
    decoder = _decoder_of(kind)
    if len(packed) <= COLLECTION_PAUSED_BYTES:
        return decoder.decode(packed)
    with without_collection(len(packed)):
        return decoder.decode(packed)


def _decoder_of(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(_any_request() if kind is Request else kind)
    return decoder


_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}  # made at first use: an asker needs few of them


# --- Pages in payloads ------------------------------------------------------------------------------------------------


def pack_page(page: Sequence[Message]) -> bytes:
    """A page of topics or segments, as the payload of a reply."""
    return page_of([pack_fields(item) for item in page])


def page_of(packed: Sequence[bytes]) -> bytes:
    """``pack_page`` of items that are packed by ``pack_fields``."""
    return _packed_count(len(packed)) + b"".join(packed)


def decode_descriptions(payload: Buffer) -> list[TopicDescription]:
    """The page of topics in the payload of a TopicsReply. Raises RemoteProtocolError for an invalid payload."""
    return _decode_page(payload, TopicDescription, "topics")


def decode_segments(payload: Buffer) -> list[ExplainedSegment]:
    """The page of segments in the payload of an ExplainSegmentsReply. Raises RemoteProtocolError if it is invalid."""
    return _decode_page(payload, ExplainedSegment, "segments")


def decode_samples(payload: Buffer) -> list[MetricFamily]:
    """The families in the payload of a SamplesReply. Raises RemoteProtocolError for an invalid payload."""
    return _decode_page(payload, MetricFamily, "metrics")


def _decode_page(payload: Buffer, cls: type[MessageT], of: str) -> list[MessageT]:
    try:
        found: list[MessageT] = _decode(payload, list[cls])  # type: ignore[valid-type]
    except REFUSED as error:
        told = refusal(error).message
        raise errors.RemoteProtocolError(f"the broker's list of {of} is not understood: {told}") from error
    return found
