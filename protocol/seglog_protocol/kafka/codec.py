"""Frames of Kafka's wire to messages and back.

A frame is what follows the four bytes of its size: a header, and a request or response. What is written begins with
the size, and is a list of chunks to be sent one after the other: bytearrays, and between them the records as they were
given.
"""

from collections.abc import Generator, Mapping
from functools import cache, cached_property
from struct import Struct as Layout
from struct import error as StructError  # noqa: N812 - an exception
from typing import Any, Final, NamedTuple, TypeVar

from seglog_protocol.kafka import messages
from seglog_protocol.kafka.compiler import (
    Reader,
    ReaderInPieces,
    Writer,
    WriterInPieces,
    message_reader,
    message_writer,
)
from seglog_protocol.kafka.definitions import apis
from seglog_protocol.kafka.errors import Malformed, UnsupportedVersion
from seglog_protocol.kafka.structs import Message, Request, Response
from seglog_protocol.kafka.varints import DECODED_BYTES_A_BYTE, DECODED_ELEMENT_BYTES, ELEMENTS_IN_ALL_MAX

API_VERSIONS: Final = 18
"""Its responses have the oldest header in all versions: who asks does not know yet what the other side speaks."""

_KEY_VERSION_ID: Final = Layout(">hhi")
_SIZE: Final = Layout(">i")
_RESPONSE_HEADERS: Final = (Layout(">ii"), Layout(">iix"))
"""The size, and a response header in each of its versions: the second has tagged fields, of which there are none."""

_HEADER_BYTES_KEPT_MAX: Final = 256
"""The largest header that is remembered, so that a connection keeps little."""

Chunks = list[Any]
"""Bytearrays, and records as they were given; the lengths of all are in bytes."""

MessageT = TypeVar("MessageT", bound=Message)


class RequestHeader(NamedTuple):
    """The header of a request, and where its body begins."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body: int
    """The position in the frame where the request begins."""


@cache
def versions() -> Mapping[int, range]:
    """The versions that can be read and written, by api key: those of Kafka 4.4.0."""
    return {api_key: api.versions for api_key, api in apis().items()}


def is_flexible(api_key: int, version: int) -> bool:
    """True if this version has tagged fields, and varints for lengths."""
    return version in apis()[api_key].flexible


def read_request_header(frame: memoryview) -> RequestHeader:
    """The header of a request. Raises Malformed, or UnsupportedVersion for an api or version that is not known."""
    try:
        api_key, version, correlation_id = _KEY_VERSION_ID.unpack_from(frame)
    except StructError:
        raise Malformed("RequestHeader", 1, "", f"{len(frame)} bytes are less than any header has") from None
    header, body = _api(api_key, version, correlation_id).read_request_header(frame, 0)
    return RequestHeader(api_key, version, correlation_id, header.client_id, body)


class RequestHeaderReader:
    """Reads the headers of one connection's requests. They nearly always differ in their correlation ids alone."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[bytes, str | None, int]] = {}  # by api key and version: what follows

    def read(self, frame: memoryview) -> RequestHeader:
        """As ``read_request_header``."""
        if len(frame) < _KEY_VERSION_ID.size:
            return read_request_header(frame)
        api_key, version, correlation_id = _KEY_VERSION_ID.unpack_from(frame)
        known = self._known.get((api_key, version))
        if known is not None and frame[_KEY_VERSION_ID.size : known[2]] == known[0]:
            return RequestHeader(api_key, version, correlation_id, known[1], known[2])
        header = read_request_header(frame)
        if header.body <= _HEADER_BYTES_KEPT_MAX:
            after_ids = bytes(frame[_KEY_VERSION_ID.size : header.body])
            self._known[api_key, version] = after_ids, header.client_id, header.body
        return header


def decoded_bytes_max(size: int) -> int:
    """Bytes of memory that a large request of ``size`` bytes takes at most, when it is read."""
    return min(DECODED_BYTES_A_BYTE * size, DECODED_ELEMENT_BYTES * ELEMENTS_IN_ALL_MAX)


def read_request_in_pieces(header: RequestHeader, frame: memoryview) -> Generator[int, None, Request]:
    """As ``read_request``, for a large frame: yields before each piece how many bytes are read."""
    read = _api(header.api_key, header.version, header.correlation_id).read_request_in_pieces
    request: Request = (yield from read(frame, header.body))[0]
    return request


def read_request(header: RequestHeader, frame: memoryview) -> Request:
    """The request behind ``header``. Its records are slices of ``frame``. Raises Malformed."""
    request: Request = _api(header.api_key, header.version, header.correlation_id).read_request(frame, header.body)[0]
    return request


def read_response(api_key: int, version: int, frame: memoryview) -> tuple[int, Response]:
    """The correlation id of a response, and the response. Raises as ``read_request_header``."""
    api = _api(api_key, version, -1)
    header, body = api.read_response_header(frame, 0)
    return header.correlation_id, api.read_response(frame, body)[0]


def write_request(correlation_id: int, client_id: str | None, request: Request, version: int) -> Chunks:
    """The frame of a request, with its size. Raises UnsupportedVersion."""
    api = _api(request.API_KEY, version, correlation_id)
    header = messages.RequestHeader(
        request_api_key=request.API_KEY, request_api_version=version, correlation_id=correlation_id, client_id=client_id
    )
    chunks: Chunks = []
    w = api.write_request_header(header, bytearray(_SIZE.size), chunks)
    return _framed(chunks, api.write_request(request, w, chunks))


def write_response(correlation_id: int, response: Response, version: int) -> Chunks:
    """The frame of a response, with its size. Raises UnsupportedVersion."""
    api = _api(response.API_KEY, version, correlation_id)
    chunks: Chunks = []
    w = bytearray(api.response_header.pack(0, correlation_id))
    return _framed(chunks, api.write_response(response, w, chunks))


def write_response_in_pieces(correlation_id: int, response: Response, version: int) -> Generator[int, None, Chunks]:
    """As ``write_response``, for a response without records: yields before each piece how many bytes are written."""
    api = _api(response.API_KEY, version, correlation_id)
    chunks: Chunks = []
    w = bytearray(api.response_header.pack(0, correlation_id))
    return _framed(chunks, (yield from api.write_response_in_pieces(response, w, chunks)))


def read_message(cls: type[MessageT], version: int, data: bytes | memoryview) -> MessageT:
    """A message that stands by itself, such as a ConsumerProtocolSubscription behind its version. Raises Malformed."""
    message: MessageT = message_reader(cls.__name__, version)(memoryview(data), 0)[0]
    return message


def write_message(message: Message, version: int) -> bytes:
    """The bytes of a message that stands by itself."""
    chunks: Chunks = []
    chunks.append(message_writer(type(message).__name__, version)(message, bytearray(), chunks))
    return b"".join(chunks)


def write_message_in_pieces(message: Message, version: int) -> Generator[int, None, bytes]:
    """As ``write_message``, for a large message: yields before each piece how many bytes are written."""
    chunks: Chunks = []
    write: WriterInPieces = message_writer(type(message).__name__, version, in_pieces=True)
    chunks.append((yield from write(message, bytearray(), chunks)))
    return b"".join(chunks)


class _ApiVersion:
    """The readers and writers of an api in one version, each made when it is first used."""

    def __init__(self, api_key: int, version: int) -> None:
        self._version = version
        self._api = apis()[api_key]
        flexible = is_flexible(api_key, version)
        self._request_header = 1 + flexible
        self._response_header = int(flexible and api_key != API_VERSIONS)
        self.response_header = _RESPONSE_HEADERS[self._response_header]

    read_request_header = cached_property[Reader](lambda self: message_reader("RequestHeader", self._request_header))
    read_request = cached_property[Reader](lambda self: message_reader(self._api.request, self._version))
    read_request_in_pieces = cached_property[ReaderInPieces](
        lambda self: message_reader(self._api.request, self._version, in_pieces=True)
    )
    read_response_header = cached_property[Reader](lambda self: message_reader("ResponseHeader", self._response_header))
    read_response = cached_property[Reader](lambda self: message_reader(self._api.response, self._version))
    write_request_header = cached_property[Writer](lambda self: message_writer("RequestHeader", self._request_header))
    write_request = cached_property[Writer](lambda self: message_writer(self._api.request, self._version))
    write_response = cached_property[Writer](lambda self: message_writer(self._api.response, self._version))
    write_response_in_pieces = cached_property[WriterInPieces](
        lambda self: message_writer(self._api.response, self._version, in_pieces=True)
    )


_api_versions: dict[tuple[int, int], _ApiVersion] = {}


def _api(api_key: int, version: int, correlation_id: int) -> _ApiVersion:
    found = _api_versions.get((api_key, version))
    if found is None:
        if version not in versions().get(api_key, ()):
            raise UnsupportedVersion(api_key, version, correlation_id)
        found = _api_versions[api_key, version] = _ApiVersion(api_key, version)
    return found


def _framed(chunks: Chunks, last: bytearray) -> Chunks:
    """All chunks of a frame, with its size filled in at the beginning of the first one."""
    if last:
        chunks.append(last)
    _SIZE.pack_into(chunks[0], 0, sum(map(len, chunks)) - _SIZE.size)
    return chunks
