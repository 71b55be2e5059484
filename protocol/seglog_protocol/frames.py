"""Native frames: a length, a msgpack map, and raw bytes after it.

    frame = length:u32be (bytes after this field)  header_length:u32be  header:msgpack map  payload:bytes

``FrameReader`` owns no socket: it lends a buffer to receive into, is told how many bytes arrived, and returns whole
frames (``frame_receiver``).
docs/PROTOCOL.md describes the format in prose, with examples that tests decode.
"""

import gc
import struct
import threading
from collections.abc import Sequence
from typing import Any, Final, NoReturn

import msgpack

from seglog_protocol.errors import FrameTooLargeError, LocalProtocolError, RemoteProtocolError
from seglog_protocol.frame_receiver import LENGTH_SIZE, Buffer, FrameReceiver

PREFIX: Final = struct.Struct(">II")
_LENGTH: Final = struct.Struct(">I")
HEADER_BYTES_MAX: Final = 1024 * 1024
"""Headers hold names and numbers only; 1 MiB is 10,000 partitions with long topic names in one request."""

COLLECTION_PAUSED_BYTES: Final = 4096
"""Values from this size on are decoded with garbage collection paused."""

PACKER_BYTES: Final = 4096
"""Initial buffer of a packer; it grows as needed."""


class Frame:
    """One whole frame, as two views into one buffer; that of ``payload`` is writable.

    ``packed`` is the header as it came; no more is known of it than its length.
    """

    __slots__ = ("packed", "payload")

    def __init__(self, packed: memoryview, payload: memoryview) -> None:
        self.packed = packed
        self.payload = payload

    @property
    def size(self) -> int:
        """In bytes."""
        return PREFIX.size + len(self.packed) + len(self.payload)

    @property
    def header(self) -> dict[str, Any]:
        """The header as a map, decoded each time. Raises RemoteProtocolError when it is no map with text keys."""
        return decode_map(self.packed, "header")


def encode_packed_prefix(packed: bytes, payload_size: int) -> bytes:
    """Length, header length and packed header of a frame; ``payload_size`` bytes of payload are to be sent after it."""
    if len(packed) > HEADER_BYTES_MAX:
        raise LocalProtocolError(
            f"the header would be {len(packed)} bytes, the limit is {HEADER_BYTES_MAX}: name fewer "
            "partitions, or shorter names"
        )
    return PREFIX.pack(LENGTH_SIZE + len(packed) + payload_size, len(packed)) + packed


def encode_frame(header: dict[str, Any], payload: Sequence[Buffer] = ()) -> bytes:
    """A whole small frame as bytes."""
    body = b"".join(payload) if payload else b""
    return encode_packed_prefix(encode_value(header), len(body)) + body


class FrameReader(FrameReceiver):
    """Bytes in, frames out, as ``FrameReceiver`` says.

    Any bytes give frames or RemoteProtocolError; headers are decoded when a frame is taken. After an error the
    reader is unusable, because the start of the next frame is unknown.
    """

    def next_frame(self) -> Frame | None:
        """The next whole frame, or None when more bytes are needed.

        Raises FrameTooLargeError when a frame announces more than the limit, RemoteProtocolError for other bad bytes.
        """
        if self._large is not None:
            large = self._take_large()
            if large is None:
                return None
            header_length: int = _LENGTH.unpack_from(large)[0]  # checked before the frame got its buffer
            return self._split(large, LENGTH_SIZE, LENGTH_SIZE + header_length, len(large))
        start, end = self._start, self._end
        if start == end:
            return None
        held = self._held
        if end - start < PREFIX.size:
            if end - start >= LENGTH_SIZE:
                length: int = _LENGTH.unpack_from(held, start)[0]
                if length > self.frame_bytes_max or length < LENGTH_SIZE:
                    self._refuse(length, 0)
            return None
        length, header_length = PREFIX.unpack_from(held, start)
        header_begin = start + PREFIX.size
        frame_end = start + LENGTH_SIZE + length
        if length > self.frame_bytes_max or header_length > min(length - LENGTH_SIZE, HEADER_BYTES_MAX):
            self._refuse(length, header_length)
        if frame_end <= end:
            self._start = frame_end
            self.announced = 0
            if self._shared is not None:
                return self._split(held, header_begin, header_begin + header_length, frame_end)
            body = memoryview(bytearray(held[header_begin:frame_end]))
            return self._split(body, 0, header_length, len(body))
        self._announce(length)
        return None

    def _refuse(self, length: int, header_length: int) -> NoReturn:
        """Raise the error of a frame whose lengths are wrong."""
        if length > self.frame_bytes_max:
            raise FrameTooLargeError(
                f"a frame of {length} bytes was announced, the limit is {self.frame_bytes_max}",
                size=length,
                limit=self.frame_bytes_max,
            )
        if length < LENGTH_SIZE:
            raise RemoteProtocolError(f"a frame of {length} bytes has no room for its header length")
        if header_length > HEADER_BYTES_MAX:
            raise RemoteProtocolError(
                f"a header of {header_length} bytes was announced, the limit is {HEADER_BYTES_MAX}"
            )
        raise RemoteProtocolError(f"a header of {header_length} bytes does not fit its frame of {length}")

    def _split(self, memory: memoryview, header_begin: int, header_end: int, frame_end: int) -> Frame:
        """The frame that lies so in ``memory``."""
        return Frame(memory[header_begin:header_end], memory[header_end:frame_end])


_TEXT: Final = frozenset({str})


def decode_map(data: Buffer, what: str) -> dict[str, Any]:
    """A msgpack map with text keys. Raises RemoteProtocolError, which names ``what``, for anything else."""
    value = decode_value(data, what)
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"the {what} is not a msgpack map")
    if not _TEXT.issuperset(map(type, value)):
        raise RemoteProtocolError(f"the {what} is a map with keys that are not text")
    return value


def decode_value(data: Buffer, what: str) -> Any:
    """The one msgpack value that fills ``data`` exactly; keys of maps are text or bytes. Raises RemoteProtocolError."""
    try:
        # msgpack bounds every container by the size of its input and the nesting by 1,024 levels.
        with without_collection(len(data)):
            value = msgpack.unpackb(data, raw=False, strict_map_key=True)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise RemoteProtocolError(f"the {what} is not valid msgpack: {_reason(error)}") from error
    return value


def _reason(error: Exception) -> str:
    """What is wrong with the bytes, in words; msgpack has none for some of its errors."""
    if isinstance(error, msgpack.exceptions.StackError):
        return "lists and maps are nested too deeply"
    if isinstance(error, msgpack.exceptions.FormatError):
        return "a byte begins no value"
    return str(error) or type(error).__name__


class without_collection:  # noqa: N801 - used as a function is, in a with statement
    """Pauses garbage collection while ``size`` bytes are decoded, if they are many.

    Decoding makes no garbage, but many small lists trigger several full collections, which would take most of the time.
    """

    __slots__ = ("_pauses",)

    def __init__(self, size: int) -> None:
        self._pauses = size > COLLECTION_PAUSED_BYTES and gc.isenabled()

    def __enter__(self) -> None:
        if self._pauses:
            gc.disable()

    def __exit__(self, *_error: object) -> None:
        if self._pauses:
            gc.enable()


def encode_value(value: Any) -> bytes:
    """One msgpack value."""
    packed: bytes = _packing.packer.pack(value)
    return packed


class _Packing(threading.local):
    """A packer per thread: ``msgpack.packb`` makes one per value, which takes half of its time."""

    def __init__(self) -> None:
        self.packer = msgpack.Packer(use_bin_type=True, buf_size=PACKER_BYTES)


_packing: Final = _Packing()
