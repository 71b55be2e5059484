"""Bytes as they are received, for frames that begin with their length: incremental, bounded, mostly without a copy.

Two wires have such frames: the native one (``frames``) and Kafka's (``kafka.frames``). A frame larger than the limit is
refused when its length has been read, before any of its bytes are kept.
"""

import contextlib
import mmap
from typing import Final

Buffer = bytes | bytearray | memoryview
Memory = bytearray | mmap.mmap

LENGTH_SIZE: Final = 4

FRAME_BYTES_MAX: Final = 100 * 1024 * 1024
"""Kafka's ``socket.request.max.bytes``: the limit of a peer unless its ``hello`` names another."""

RECEIVE_BYTES: Final = 64 * 1024
"""A frame of which a part has come, and which is larger with its length, gets a buffer of its own. Also the size of a
receive buffer that is not shared: many small pipelined frames in one system call."""

GRANT_BYTES_MAX: Final = 4 * 1024 * 1024
"""Most memory that a large frame asks for at a time."""

SPARE_BUFFER_BYTES_MAX: Final = 4 * 1024 * 1024
SPARE_BUFFERS_MAX: Final = 4
"""Buffers beyond this size or number are not kept for reuse."""

REUSED_BYTES_MAX: Final = 32 * 1024 * 1024
"""Two buffers up to this size are kept by a reader that uses them again."""

_POPS: Final = 1024  # how often a buffer is used again, at most


def has_own_buffer(view: memoryview) -> bool:
    """Whether it lies in a large buffer that was granted for its frame alone, and may be used again."""
    return isinstance(view.obj, mmap.mmap)


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

    def give_back(self, view: memoryview) -> None:
        """Return the buffer of a frame, of which ``view`` is a part, to the pool; it must not be used any more."""
        buffer = view.obj
        if isinstance(buffer, (bytearray, mmap.mmap)) and RECEIVE_BYTES < len(buffer) <= SPARE_BUFFER_BYTES_MAX:
            self._spare.append(buffer)
            self._spare.sort(key=len)
            del self._spare[:-SPARE_BUFFERS_MAX]


class ReusedMemory(BufferPool):
    """A pool for one reader, to which nothing is given back: a buffer is used again once nobody has a view of it.

    New memory has to be cleared by the operating system and is in no cache of the processor, which takes longer than
    receiving into it.
    """

    def take(self, size: int, size_max: int | None = None) -> bytearray:
        """A buffer of ``size`` to ``size_max`` bytes (None: twice as many), for the caller to view before the next one.

        Contents are arbitrary.
        """
        for buffer in self._spare:
            if isinstance(buffer, bytearray) and size < len(buffer) <= (2 * size if size_max is None else size_max):
                try:
                    buffer.pop()  # which is refused while there is a view
                except BufferError:
                    continue
                return buffer
        made = bytearray(size + _POPS)
        if size <= REUSED_BYTES_MAX:
            self._spare = [*self._spare[-1:], made]
        return made


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

    def has(self, view: memoryview) -> bool:
        """Whether ``view`` lies here."""
        return view.obj is self._memory.obj


class FrameReceiver:
    """Bytes in; what all readers of frames have in common: incremental and bounded, without a socket.

    Either ``receive_data(bytes)``, or without a copy: ``n = socket.recv_into(reader.get_buffer())`` and then
    ``reader.received(n)``. After each, call the reader's ``next_frame`` until it returns None, which is "not yet".

    A frame is what follows four bytes with its length. It has memory of its own. Not so with a shared receive buffer:
    there it lies where it was received, until ``settle``.
    """

    def __init__(
        self,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        receive_buffer: ReceiveBuffer | None = None,
        pool: BufferPool | None = None,
        *,
        asks: bool = False,
    ) -> None:
        """``receive_buffer`` and ``pool`` are shared by all readers of one thread.

        With a pool, the caller gives frames back when done with them, those larger than the receive buffer.

        ``asks`` is for servers with untrusted peers. A large frame then gets only the memory that is granted: when
        ``wanted`` is not 0, ``grant`` (or ``grant_spare``) must be called before the next ``get_buffer``.
        """
        self.frame_bytes_max = frame_bytes_max
        self._shared = receive_buffer
        self._receive = memoryview(bytearray(RECEIVE_BYTES)) if receive_buffer is None else _NOTHING
        self._is_in_shared = False  # whether _held is a part of the shared buffer
        # Received and not handed out: bytes [_start, _end) of _held. That is the receive buffer or one of our own.
        self._held = _NOTHING
        self._start = self._end = 0
        self._pool = pool
        self._asks = asks
        self.announced = 0
        """Length of a large frame that has no buffer yet; 0 when there is none."""
        self._large: memoryview | None = None  # buffer of a large frame, which is received in place
        self.large_size = 0
        """Bytes received so far of a large frame that has a buffer."""
        self._granted = 0  # bytes of that buffer that may be received into

    def get_buffer(self) -> memoryview:
        """The buffer to receive into, never empty. Valid until the next call of any method."""
        if self._is_filling_large():
            assert self._large is not None
            return self._large[self.large_size : self._granted]
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
            self.large_size += size
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
            part = memoryview(data)[: self._granted - self.large_size]
            self._large[self.large_size : self.large_size + len(part)] = part
            self.large_size += len(part)
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

    def peek(self, size: int) -> bytes:
        """The first of these bytes, at most ``size``."""
        return bytes(self._held[self._start : min(self._end, self._start + size)])

    def take(self, size: int) -> bytes:
        """The first of these bytes, at most ``size``, which are handed out by this: for what has no frames."""
        taken = self.peek(size)
        self._start += len(taken)
        return taken

    def _is_filling_large(self) -> bool:
        return self._large is not None and self.large_size < len(self._large)

    @property
    def is_idle(self) -> bool:
        """Whether no frame is partly received, so that the peer may close the connection cleanly."""
        return self._large is None and self._start == self._end

    @property
    def has_large(self) -> bool:
        """Whether a part of a large frame has come."""
        return self._large is not None or self.announced > 0

    @property
    def wanted(self) -> int:
        """Bytes of memory that a large frame needs next; 0 when it needs none.

        At first the bytes received plus RECEIVE_BYTES, then as much again each time, so that a peer that sends n bytes
        is granted less than 2n, whatever length it announced.
        """
        if self.announced:
            return min(self.announced, self.held + RECEIVE_BYTES)
        if self._large is None or self.large_size < self._granted:
            return 0
        return min(len(self._large) - self._granted, self._granted, GRANT_BYTES_MAX)

    def grant(self, size: int) -> None:
        """Grant the large frame ``size`` more bytes, at most ``wanted``."""
        if self.announced:
            self._begin_large(self.announced)
        self._granted += size

    def grant_spare(self, buffer: Memory) -> None:
        """Receive the announced large frame into a spare buffer, which must hold all of it."""
        length = self.announced
        self._begin_large(length, buffer)
        self._granted = length

    def _begin_large(self, length: int, buffer: Memory | None = None) -> None:
        if buffer is None:
            buffer = _new_buffer(length) if self._asks else bytearray(length)
        self.announced = 0
        self._granted = 0
        self._large = memoryview(buffer)[:length]
        received = self._held[self._start + LENGTH_SIZE : self._end]
        self.large_size = len(received)
        self._large[: self.large_size] = received
        self._held, self._start, self._end, self._is_in_shared = _NOTHING, 0, 0, False

    def _take_large(self) -> memoryview | None:
        """The whole large frame, without its length; None while bytes are missing."""
        large = self._large
        if large is None or self.large_size < len(large):
            return None
        self._large, self.large_size, self._granted = None, 0, 0
        return large

    def _announce(self, length: int) -> None:
        """A part of a frame of ``length`` bytes has come, whose length was checked; it gets a buffer if it is large."""
        if length + LENGTH_SIZE <= RECEIVE_BYTES:
            return
        if self._asks:
            self.announced = length
        else:
            self._begin_large(length, None if self._pool is None else self._pool.take(length))
            self._granted = length


def _new_buffer(size: int) -> mmap.mmap:
    """Memory that the operating system allocates page by page on write. Raises MemoryError."""
    try:
        buffer = mmap.mmap(-1, size)
    except OSError as error:
        raise MemoryError(f"no {size} bytes of memory: {error}") from error
    if _NO_HUGE_PAGES:
        with contextlib.suppress(OSError):  # a kernel without huge pages
            buffer.madvise(_NO_HUGE_PAGES)
    return buffer


_NOTHING: Final = memoryview(b"")

_NO_HUGE_PAGES: Final[int] = getattr(mmap, "MADV_NOHUGEPAGE", 0)
"""A huge page would take 2 MiB for the first byte, more than was granted."""
