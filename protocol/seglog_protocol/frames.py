"""Native frames: a length, a msgpack map, and raw bytes behind it.

    frame = length:u32be (bytes after this field)  header_length:u32be  header:msgpack map  payload:bytes

``FrameReader`` owns no socket: it lends a buffer to receive into, takes note of how much came, and hands out whole
frames. A frame larger than the limit is refused when its length has been read, before any of its bytes are kept.
Reader and writer stand in this file; docs/PROTOCOL.md has the same in prose, with examples that tests decode.
"""

import struct
import threading
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgpack

from seglog_protocol.errors import FrameTooLargeError, LocalProtocolError, RemoteProtocolError

Buffer = bytes | bytearray | memoryview

PREFIX: Final = struct.Struct(">II")
_LENGTH: Final = struct.Struct(">I")
LENGTH_SIZE: Final = 4

HEADER_BYTES_MAX: Final = 1024 * 1024
"""A header only names things; 1 MiB is 10,000 partitions with long topic names in one request."""

FRAME_BYTES_MAX: Final = 100 * 1024 * 1024
"""Kafka's ``socket.request.max.bytes``: what a peer accepts unless it says otherwise in ``hello``."""

PACKER_BYTES: Final = 4096
"""Where a packer begins; it grows with what it packs."""

RECEIVE_BYTES: Final = 64 * 1024
"""Lent for receiving when no large frame is under way: many small pipelined frames in one system call."""


SPARE_BUFFER_BYTES_MAX: Final = 4 * 1024 * 1024
SPARE_BUFFERS_MAX: Final = 4
"""Larger buffers, and more of them, are not kept for the next large frame."""


class Frame(NamedTuple):
    """One whole frame. ``payload`` is a writable view into a buffer that belongs to this frame alone."""

    header: dict[str, Any]
    payload: memoryview


class BufferPool:
    """Buffers of large frames, used again: to make a new one costs about as much as to receive into it.

    For the readers of one thread. What is never given back is just garbage.
    """

    def __init__(self) -> None:
        self._spare: list[bytearray] = []  # the smallest first

    def take(self, size: int) -> bytearray:
        """A buffer of at least ``size`` bytes, with anything in it."""
        for number, buffer in enumerate(self._spare):
            if len(buffer) >= size:
                return self._spare.pop(number)
        return bytearray(size)

    def give_back(self, frame: Frame) -> None:
        """Nobody looks at ``frame`` any more; its buffer may be given to the next."""
        buffer = frame.payload.obj
        if type(buffer) is bytearray and RECEIVE_BYTES < len(buffer) <= SPARE_BUFFER_BYTES_MAX:
            self._spare.append(buffer)
            self._spare.sort(key=len)
            del self._spare[:-SPARE_BUFFERS_MAX]


def encode_frame_prefix(header: dict[str, Any], payload_size: int) -> bytes:
    """Length, header length and header of a frame whose payload of ``payload_size`` bytes the caller sends after it."""
    return encode_packed_prefix(encode_value(header), payload_size)


def encode_packed_prefix(packed: bytes, payload_size: int) -> bytes:
    """The same with a header that is packed already."""
    if len(packed) > HEADER_BYTES_MAX:
        raise LocalProtocolError(
            f"the header would be {len(packed)} bytes, the limit is {HEADER_BYTES_MAX}: name fewer partitions"
        )
    return PREFIX.pack(LENGTH_SIZE + len(packed) + payload_size, len(packed)) + packed


def encode_frame(header: dict[str, Any], payload: Sequence[Buffer] = ()) -> bytes:
    """A whole small frame as bytes."""
    body = b"".join(payload) if payload else b""
    return encode_frame_prefix(header, len(body)) + body


class FrameReader:
    """Bytes in, frames out; incremental and bounded.

    Either ``receive_data(bytes)``, or without a copy: ``n = socket.recv_into(reader.get_buffer())`` and then
    ``reader.received(n)``. After each, take frames with ``next_frame`` until it returns None, which is "not yet".

    Any bytes whatever give frames or RemoteProtocolError; after an error the reader is not usable: what follows cannot
    be told from garbage.
    """

    def __init__(
        self,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        header_bytes_max: int = HEADER_BYTES_MAX,
        receive_buffer: bytearray | None = None,
        pool: BufferPool | None = None,
    ) -> None:
        """``receive_buffer`` and ``pool`` may be shared by all readers of one thread.

        Nothing stays in the buffer after ``received``; who passes a pool gives frames back when done with them.
        """
        self.frame_bytes_max = frame_bytes_max
        self.header_bytes_max = header_bytes_max
        self._receive = bytearray(RECEIVE_BYTES) if receive_buffer is None else receive_buffer
        self._pending = bytearray()  # received, not yet a whole frame
        self._consumed = 0  # bytes of _pending already handed out
        self._pool = pool
        self._large: memoryview | None = None  # of a frame larger than the receive buffer, received in place
        self._large_size = 0

    def get_buffer(self) -> memoryview:
        """Where to receive into: never empty. Valid until the next call of any method."""
        if self._is_filling_large():
            assert self._large is not None
            return self._large[self._large_size :]
        return memoryview(self._receive)

    def received(self, size: int) -> None:
        """``size`` bytes were written at the start of the last ``get_buffer``."""
        if self._is_filling_large():
            self._large_size += size
        else:
            self._pending += memoryview(self._receive)[:size]

    def receive_data(self, data: Buffer) -> None:
        """Take bytes that were received elsewhere."""
        if self._large is not None:
            part = memoryview(data)[: len(self._large) - self._large_size]
            self._large[self._large_size : self._large_size + len(part)] = part
            self._large_size += len(part)
            data = memoryview(data)[len(part) :]
        self._pending += data  # what follows a large frame waits behind it

    def _is_filling_large(self) -> bool:
        return self._large is not None and self._large_size < len(self._large)

    @property
    def is_idle(self) -> bool:
        """True between frames: the peer may close here without having broken anything off."""
        return self._large is None and len(self._pending) == self._consumed

    def next_frame(self) -> Frame | None:
        """The next whole frame, or None when more bytes are needed.

        Raises FrameTooLargeError when a frame announces more than the limit, RemoteProtocolError when it is no frame.
        """
        if self._large is not None:
            if self._large_size < len(self._large):
                return None
            large, self._large, self._large_size = self._large, None, 0
            return self._parse(large)
        available = len(self._pending) - self._consumed
        if available < LENGTH_SIZE:
            self._compact()
            return None
        start = self._consumed + LENGTH_SIZE
        length: int = _LENGTH.unpack_from(self._pending, self._consumed)[0]
        if length > self.frame_bytes_max:
            raise FrameTooLargeError(
                f"a frame of {length} bytes was announced, the limit is {self.frame_bytes_max}",
                size=length,
                limit=self.frame_bytes_max,
            )
        if length < LENGTH_SIZE:
            raise RemoteProtocolError(f"a frame of {length} bytes has no room for its header length")
        if available >= LENGTH_SIZE + length:
            body = self._pending[start : start + length]
            self._consumed = start + length
            if self._consumed == len(self._pending):
                self._pending.clear()
                self._consumed = 0
            return self._parse(memoryview(body))
        if available < PREFIX.size:
            self._compact()
            return None
        # Both lengths are judged before anything is allocated for them.
        self._check_header_length(_LENGTH.unpack_from(self._pending, start)[0], length)
        if length > RECEIVE_BYTES:
            self._large = memoryview(bytearray(length) if self._pool is None else self._pool.take(length))[:length]
            self._large_size = available - LENGTH_SIZE
            self._large[: self._large_size] = self._pending[start:]
            self._pending.clear()
            self._consumed = 0
        else:
            self._compact()
        return None

    def _compact(self) -> None:
        if self._consumed:
            del self._pending[: self._consumed]
            self._consumed = 0

    def _check_header_length(self, header_length: int, length: int) -> None:
        if header_length > self.header_bytes_max:
            raise RemoteProtocolError(
                f"a header of {header_length} bytes was announced, the limit is {self.header_bytes_max}"
            )
        if header_length > length - LENGTH_SIZE:
            raise RemoteProtocolError(f"a header of {header_length} bytes does not fit its frame of {length}")

    def _parse(self, view: memoryview) -> Frame:
        header_length: int = _LENGTH.unpack_from(view)[0]
        self._check_header_length(header_length, len(view))
        end = LENGTH_SIZE + header_length
        return Frame(decode_map(view[LENGTH_SIZE:end], "header"), view[end:])


_TEXT: Final = frozenset({str})


def decode_map(data: Buffer, what: str) -> dict[str, Any]:
    """A msgpack map with text keys; RemoteProtocolError naming ``what`` it was meant to be when it is anything else."""
    value = decode_value(data, what)
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"the {what} is no msgpack map")
    if not _TEXT.issuperset(map(type, value)):
        raise RemoteProtocolError(f"the {what} is a map with keys that are not text")
    return value


def decode_value(data: Buffer, what: str) -> Any:
    """Any one msgpack value that fills ``data`` exactly; keys of maps are text or, where nobody looks, bytes."""
    try:
        # msgpack bounds every container by the size of its input and the nesting by 1,024 levels.
        value = msgpack.unpackb(data, raw=False, strict_map_key=True)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise RemoteProtocolError(f"the {what} is not valid msgpack: {error or type(error).__name__}") from error
    return value


def encode_value(value: Any) -> bytes:
    """One msgpack value."""
    packed: bytes = _packing.packer.pack(value)
    return packed


class _Packing(threading.local):
    """A packer for each thread: ``msgpack.packb`` makes one for each value, and that takes half of its time."""

    def __init__(self) -> None:
        self.packer = msgpack.Packer(use_bin_type=True, buf_size=PACKER_BYTES)


_packing: Final = _Packing()
