"""Native frames: a length, a msgpack map, and raw bytes after it.

    frame = length:u32be (bytes after this field)  header_length:u32be  header:msgpack map  payload:bytes

``FrameReader`` owns no socket: it lends a buffer to receive into, is told how many bytes arrived, and returns whole
frames. A frame larger than the limit is refused when its length has been read, before any of its bytes are kept.
docs/PROTOCOL.md describes the format in prose, with examples that tests decode.
"""

import contextlib
import gc
import mmap
import struct
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, NoReturn

import msgpack

from seglog_protocol.errors import FrameTooLargeError, LocalProtocolError, RemoteProtocolError

Buffer = bytes | bytearray | memoryview
Memory = bytearray | mmap.mmap

PREFIX: Final = struct.Struct(">II")
_LENGTH: Final = struct.Struct(">I")
LENGTH_SIZE: Final = 4

HEADER_BYTES_MAX: Final = 1024 * 1024
"""Headers hold names and numbers only; 1 MiB is 10,000 partitions with long topic names in one request."""

FRAME_BYTES_MAX: Final = 100 * 1024 * 1024
"""Kafka's ``socket.request.max.bytes``: the limit of a peer unless its ``hello`` names another."""

CONTAINERS_MAX: Final = 50_000
"""Lists and maps allowed in the header of a request. A header of single bytes, each an empty list, takes a third of a
second to decode; 10,000 partitions are 10,000 maps, and the bytes of their offsets look like 20,000 more."""

COLLECTION_PAUSED_BYTES: Final = 4096
"""Values from this size on are decoded with garbage collection paused."""

PACKER_BYTES: Final = 4096
"""Initial buffer of a packer; it grows as needed."""

RECEIVE_BYTES: Final = 64 * 1024
"""A frame of which a part has come, and which is larger with its length, gets a buffer of its own. Also the size of a
receive buffer that is not shared: many small pipelined frames in one system call."""

GRANT_BYTES_MAX: Final = 4 * 1024 * 1024
"""Most memory that a large frame asks for at a time."""

SPARE_BUFFER_BYTES_MAX: Final = 4 * 1024 * 1024
SPARE_BUFFERS_MAX: Final = 4
"""Buffers beyond this size or number are not kept for reuse."""


class Frame(NamedTuple):
    """One whole frame, as two views into one buffer; that of ``payload`` is writable.

    ``packed`` is the header as it came; no more is known of it than its length.
    """

    packed: memoryview
    payload: memoryview

    @property
    def has_own_buffer(self) -> bool:
        """Whether it lies in a large buffer that was granted for it alone, and may be used again."""
        return isinstance(self.payload.obj, mmap.mmap)

    @property
    def header(self) -> dict[str, Any]:
        """The header as a map, decoded each time. Raises RemoteProtocolError when it is no map with text keys."""
        return decode_map(self.packed, "header")


class BufferPool:
    """Reusable buffers of large frames: allocating one costs about as much as receiving into it.

    For the readers of one thread. Buffers that are never given back are garbage-collected.
    """

    def __init__(self) -> None:
        self._spare: list[Memory] = []  # the smallest first

    def take(self, size: int, size_max: int | None = None) -> Memory | None:
        """A spare buffer of ``size`` to ``size_max`` bytes, contents arbitrary; None without one."""
        for number, buffer in enumerate(self._spare):
            if len(buffer) >= size:
                return self._spare.pop(number) if size_max is None or len(buffer) <= size_max else None
        return None

    @property
    def spare_bytes(self) -> int:
        """Bytes of all spare buffers."""
        return sum(map(len, self._spare))

    def clear(self) -> None:
        """Drop all spare buffers."""
        self._spare.clear()

    def give_back(self, frame: Frame) -> None:
        """Return the buffer of ``frame`` to the pool; its payload must not be used any more."""
        buffer = frame.payload.obj
        if isinstance(buffer, (bytearray, mmap.mmap)) and RECEIVE_BYTES < len(buffer) <= SPARE_BUFFER_BYTES_MAX:
            self._spare.append(buffer)
            self._spare.sort(key=len)
            del self._spare[:-SPARE_BUFFERS_MAX]


def encode_frame_prefix(header: dict[str, Any], payload_size: int) -> bytes:
    """Length, header length and header of a frame; the caller sends the ``payload_size`` bytes of payload after it."""
    return encode_packed_prefix(encode_value(header), payload_size)


def encode_packed_prefix(packed: bytes, payload_size: int) -> bytes:
    """``encode_frame_prefix`` for a header that is already packed."""
    if len(packed) > HEADER_BYTES_MAX:
        raise LocalProtocolError(
            f"the header would be {len(packed)} bytes, the limit is {HEADER_BYTES_MAX}: name fewer partitions"
        )
    return PREFIX.pack(LENGTH_SIZE + len(packed) + payload_size, len(packed)) + packed


def encode_frame(header: dict[str, Any], payload: Sequence[Buffer] = ()) -> bytes:
    """A whole small frame as bytes."""
    body = b"".join(payload) if payload else b""
    return encode_frame_prefix(header, len(body)) + body


class ReceiveBuffer:
    """A buffer that the readers of one thread receive into, one behind the other, until all of them have settled."""

    def __init__(self, size: int) -> None:
        self._memory = memoryview(bytearray(size))
        self._used = 0

    @property
    def free(self) -> memoryview:
        """What no reader has received into."""
        return self._memory[self._used :]

    @property
    def has_room(self) -> bool:
        """Whether another reader may receive: there is room for what it holds, and for more."""
        return len(self._memory) - self._used >= 2 * RECEIVE_BYTES

    def take(self, size: int) -> None:
        """The first ``size`` bytes of what was free belong to a reader."""
        self._used += size

    def clear(self) -> None:
        """All is free again: all readers have settled."""
        self._used = 0

    def has(self, frame: Frame) -> bool:
        """Whether ``frame`` lies here."""
        return frame.payload.obj is self._memory.obj


class FrameReader:
    """Bytes in, frames out; incremental and bounded.

    Either ``receive_data(bytes)``, or without a copy: ``n = socket.recv_into(reader.get_buffer())`` and then
    ``reader.received(n)``. After each, call ``next_frame`` until it returns None, which is "not yet".

    A frame has memory of its own. Not so with a shared receive buffer: there it lies where it was received, until
    ``settle``.

    Any bytes give frames or RemoteProtocolError; headers are decoded by whoever takes the frames. After an error the
    reader is unusable, because the start of the next frame is unknown.
    """

    def __init__(
        self,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        header_bytes_max: int = HEADER_BYTES_MAX,
        receive_buffer: ReceiveBuffer | None = None,
        pool: BufferPool | None = None,
        *,
        asks: bool = False,
    ) -> None:
        """``receive_buffer`` and ``pool`` are shared by all readers of one thread.

        With a pool, the caller gives frames back when done with them, those larger than the receive buffer.

        ``asks`` is for servers with untrusted peers. A large frame then gets only the memory that is granted: when
        ``wanted`` is not 0, ``grant`` (or ``grant_spare``) must be called before the next ``get_buffer``. Headers with
        more than CONTAINERS_MAX lists and maps are refused.
        """
        self.frame_bytes_max = frame_bytes_max
        self.header_bytes_max = header_bytes_max
        self._shared = receive_buffer
        self._receive = memoryview(bytearray(RECEIVE_BYTES)) if receive_buffer is None else _NOTHING
        self._is_in_shared = False  # whether _held is a part of the shared buffer
        # Received and not handed out: bytes [_start, _end) of _held. That is the receive buffer or one of our own.
        self._held = _NOTHING
        self._start = self._end = 0
        self._pool = pool
        self._asks = asks
        self._announced = 0  # length of a large frame that has no buffer yet
        self._large: memoryview | None = None  # buffer of a large frame, which is received in place
        self._large_size = 0
        self._granted = 0  # bytes of that buffer that may be received into

    def get_buffer(self) -> memoryview:
        """The buffer to receive into, never empty. Valid until the next call of any method."""
        if self._is_filling_large():
            assert self._large is not None
            return self._large[self._large_size : self._granted]
        return self._room()

    def _room(self) -> memoryview:
        """What may be received into behind what is held, never empty."""
        held = self._end - self._start
        receive = self._receive if self._shared is None else self._shared.free
        if held >= len(receive):  # whole frames that were not taken out
            receive = memoryview(bytearray(held + RECEIVE_BYTES))
        if held and (self._held is not receive or self._start):
            receive[:held] = self._held[self._start : self._end]
        self._held, self._start, self._end = receive, 0, held
        self._is_in_shared = self._shared is not None
        return receive[held:]

    def received(self, size: int) -> None:
        """``size`` bytes, perhaps none, were written at the start of the last ``get_buffer``."""
        if self._is_filling_large():
            self._large_size += size
        else:
            self._add_held(size)

    def _add_held(self, size: int) -> None:
        """``size`` bytes were written at the start of the last ``_room``."""
        self._end += size
        if self._shared is not None:
            self._shared.take(self._end)

    def receive_data(self, data: Buffer) -> None:
        """Add bytes that the caller received into a buffer of its own."""
        if self._large is not None:
            part = memoryview(data)[: self._granted - self._large_size]
            self._large[self._large_size : self._large_size + len(part)] = part
            self._large_size += len(part)
            data = memoryview(data)[len(part) :]
        while len(data):  # what follows a large frame waits behind it
            room = self._room()
            size = min(len(room), len(data))
            room[:size] = memoryview(data)[:size]
            self._add_held(size)
            data = memoryview(data)[size:]

    def settle(self) -> None:
        """Keep what is left in a shared receive buffer, because that is about to be cleared."""
        if self._is_in_shared:
            left = self._held[self._start : self._end]
            self._held = memoryview(bytearray(left)) if left else _NOTHING
            self._start, self._end, self._is_in_shared = 0, len(left), False

    @property
    def held(self) -> int:
        """Bytes received and not handed out, without those of a large frame that has a buffer."""
        return self._end - self._start

    def _is_filling_large(self) -> bool:
        return self._large is not None and self._large_size < len(self._large)

    @property
    def is_idle(self) -> bool:
        """Whether no frame is partly received, so that the peer may close the connection cleanly."""
        return self._large is None and self._start == self._end

    def next_frame(self) -> Frame | None:
        """The next whole frame, or None when more bytes are needed.

        Raises FrameTooLargeError when a frame announces more than the limit, RemoteProtocolError for other bad bytes.
        """
        if self._large is not None:
            if self._large_size < len(self._large):
                return None
            large, self._large, self._large_size, self._granted = self._large, None, 0, 0
            header_length: int = _LENGTH.unpack_from(large)[0]  # checked before the frame got its buffer
            return self._split(large, LENGTH_SIZE, LENGTH_SIZE + header_length, len(large))
        start, end = self._start, self._end
        if start == end:
            return None
        held = self._held
        if end - start < PREFIX.size:
            self._look_at_length(held, start, end)
            return None
        length, header_length = PREFIX.unpack_from(held, start)
        header_begin = start + PREFIX.size
        frame_end = start + LENGTH_SIZE + length
        if length > self.frame_bytes_max or header_length > min(length - LENGTH_SIZE, self.header_bytes_max):
            self._refuse(length, header_length)
        if frame_end <= end:
            self._start = frame_end
            self._announced = 0
            if self._shared is not None:
                return self._split(held, header_begin, header_begin + header_length, frame_end)
            body = memoryview(bytearray(held[header_begin:frame_end]))
            return self._split(body, 0, header_length, len(body))
        if length + LENGTH_SIZE <= RECEIVE_BYTES:
            return None
        # Both lengths were checked before anything is allocated for them.
        if self._asks:
            self._announced = length
        else:
            self._begin_large(length, None if self._pool is None else self._pool.take(length))
            self._granted = length
        return None

    def _look_at_length(self, held: memoryview, start: int, end: int) -> None:
        """Refuse a frame of which only the length has come, if that is wrong."""
        if end - start >= LENGTH_SIZE:
            length: int = _LENGTH.unpack_from(held, start)[0]
            if length > self.frame_bytes_max or length < LENGTH_SIZE:
                self._refuse(length, 0)

    @property
    def has_large(self) -> bool:
        """Whether a part of a large frame has come."""
        return self._large is not None or self._announced > 0

    @property
    def announced(self) -> int:
        """Length of a large frame that has no buffer yet; 0 when there is none."""
        return self._announced

    @property
    def large_size(self) -> int:
        """Bytes received so far of a large frame that has a buffer."""
        return self._large_size

    @property
    def wanted(self) -> int:
        """Bytes of memory that a large frame needs next; 0 when it needs none.

        At first the bytes received plus RECEIVE_BYTES, then as much again each time, so that a peer that sends n bytes
        is granted less than 2n, whatever length it announced.
        """
        if self._announced:
            return min(self._announced, self.held + RECEIVE_BYTES)
        if self._large is None or self._large_size < self._granted:
            return 0
        return min(len(self._large) - self._granted, self._granted, GRANT_BYTES_MAX)

    def grant(self, size: int) -> None:
        """Grant the large frame ``size`` more bytes, at most ``wanted``."""
        if self._announced:
            self._begin_large(self._announced)
        self._granted += size

    def grant_spare(self, buffer: Memory) -> None:
        """Receive the announced large frame into a spare buffer, which must hold all of it."""
        length = self._announced
        self._begin_large(length, buffer)
        self._granted = length

    def _begin_large(self, length: int, buffer: Memory | None = None) -> None:
        if buffer is None:
            buffer = _new_buffer(length) if self._asks else bytearray(length)
        self._announced = 0
        self._granted = 0
        self._large = memoryview(buffer)[:length]
        received = self._held[self._start + LENGTH_SIZE : self._end]
        self._large_size = len(received)
        self._large[: self._large_size] = received
        self._held, self._start, self._end, self._is_in_shared = _NOTHING, 0, 0, False

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
        if header_length > self.header_bytes_max:
            raise RemoteProtocolError(
                f"a header of {header_length} bytes was announced, the limit is {self.header_bytes_max}"
            )
        raise RemoteProtocolError(f"a header of {header_length} bytes does not fit its frame of {length}")

    def _split(self, memory: memoryview, header_begin: int, header_end: int, frame_end: int) -> Frame:
        """The frame that lies so in ``memory``. Raises RemoteProtocolError for a header with too many containers."""
        if header_end - header_begin > CONTAINERS_MAX and self._asks:
            _check_containers(memory[header_begin:header_end])
        return Frame(memory[header_begin:header_end], memory[header_end:frame_end])


def _new_buffer(size: int) -> mmap.mmap:
    """Memory that the operating system allocates page by page on write. Raises MemoryError."""
    try:
        buffer = mmap.mmap(-1, size)
    except OSError as error:
        raise MemoryError(f"no {size} bytes of memory: {error}") from error
    if _NO_HUGE_PAGES is not None:
        with contextlib.suppress(OSError):  # a kernel without huge pages
            buffer.madvise(_NO_HUGE_PAGES)
    return buffer


_NOTHING: Final = memoryview(b"")

_NO_HUGE_PAGES: Final[int | None] = getattr(mmap, "MADV_NOHUGEPAGE", None)
"""A huge page would take 2 MiB for the first byte, more than was granted."""

_NO_CONTAINER: Final = bytes(byte for byte in range(256) if not (0x80 <= byte < 0xA0 or 0xDC <= byte < 0xE0))
"""Bytes that cannot begin a list or map in msgpack."""


def _check_containers(header: memoryview) -> None:
    """Refuse a header that may hold more than CONTAINERS_MAX lists and maps, before it is decoded."""
    count = len(bytes(header).translate(None, _NO_CONTAINER))
    if count > CONTAINERS_MAX:
        raise RemoteProtocolError(f"the header has room for {count} lists and maps, the limit is {CONTAINERS_MAX}")


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


@contextlib.contextmanager
def _paused_collection() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


_NOT_PAUSED: Final = contextlib.nullcontext()


def without_collection(size: int) -> contextlib.AbstractContextManager[None]:
    """Pauses garbage collection while ``size`` bytes are decoded, if they are many.

    Decoding makes no garbage, but many small lists trigger several full collections, which would take most of the time.
    """
    return _paused_collection() if size > COLLECTION_PAUSED_BYTES and gc.isenabled() else _NOT_PAUSED


def encode_value(value: Any) -> bytes:
    """One msgpack value."""
    packed: bytes = _packing.packer.pack(value)
    return packed


class _Packing(threading.local):
    """A packer per thread: ``msgpack.packb`` makes one per value, which takes half of its time."""

    def __init__(self) -> None:
        self.packer = msgpack.Packer(use_bin_type=True, buf_size=PACKER_BYTES)


_packing: Final = _Packing()
