"""What one connection receives: its bytes, the memory for its large requests, and how long nothing has come."""

import math

import trio

from seglog_broker.listeners.transport import Transport
from seglog_broker.runtime.request_memory import RequestMemory, Share
from seglog_protocol.frame_receiver import RECEIVE_BYTES, FrameReceiver, has_own_buffer


class Intake:
    """Receives into ``reader``, whose large frames get their memory from ``memory`` as their bytes arrive.

    ``end`` it with the connection.
    """

    def __init__(self, transport: Transport, reader: FrameReceiver, memory: RequestMemory) -> None:
        self._transport = transport
        self.reader = reader
        self._memory = memory
        self._share: Share | None = None  # of the memory, for the large request being received or served
        self.admission: trio.CancelScope | None = None
        """While it waits for memory."""
        self._held_beyond = 0  # bytes held beyond RECEIVE_BYTES that are in no share
        self.is_stopped = False
        self.quiet_since = math.inf
        """When the connection began to wait for bytes, by trio's clock; inf while it does not wait."""

    def receive(self) -> memoryview | None:
        """Receive once. Returns a view of the new bytes, empty at the end of the connection; None if there are none."""
        buffer = self.reader.get_buffer()[: self._memory.receive_bytes_max]
        try:
            size = self._transport.receive_into(buffer)
        except BlockingIOError:
            self.reader.received(0)
            return None
        self.reader.received(size)
        return buffer[:size]

    @property
    def has_share(self) -> bool:
        """Whether it has memory for a large request."""
        return self._share is not None

    def take_memory(self) -> bool:
        """Take memory for the next part of a large frame. False: ``admission.wait_for_memory`` must follow."""
        reader = self.reader
        if self._share is None:
            spare = self.begin_share().take_spare(reader.announced)
            if spare is not None:
                reader.grant_spare(spare)
                return True
        size = reader.wanted
        if self.begin_share().take_now(size):
            reader.grant(size)
            return True
        return False

    def begin_share(self) -> Share:
        """The share of the large request that is received; without memory at first."""
        if self._share is None:
            self._share = self._memory.begin()
        return self._share

    def keep_large_part(self) -> bool:
        """Keep the received part of a large frame in memory that is accounted for.

        False: ``admission.wait_for_memory`` must follow.
        """
        return not (self.reader.held > RECEIVE_BYTES and self.reader.wanted) or self.take_memory()

    def settle(self, kept: int) -> None:
        """Keep what is left of what was received; report it, with ``kept`` bytes elsewhere that are in no share."""
        self.reader.settle()
        beyond = max(0, self.reader.held + kept - RECEIVE_BYTES)
        if beyond != self._held_beyond:
            self._memory.note_held(beyond - self._held_beyond)
            self._held_beyond = beyond

    def free_unused(self) -> None:
        """Give the memory back, unless a large frame is being received."""
        if self._share is not None and not self.reader.has_large:
            self._free()

    def give_back(self, view: memoryview) -> None:
        """Give back the buffer of a large frame, of which ``view`` is a part; nothing for another one."""
        if has_own_buffer(view):
            self._memory.pool.give_back(view)
            self._free()

    def stop(self) -> None:
        """Wait for no more memory."""
        self.is_stopped = True
        if self.admission is not None:
            self.admission.cancel()

    def end(self) -> None:
        """Give everything back."""
        self._free()
        self._memory.note_held(-self._held_beyond)
        self._held_beyond = 0

    @property
    def quiet_seconds(self) -> float:
        """How long it has waited for bytes; negative while it does not wait."""
        return trio.current_time() - self.quiet_since

    def why_stalled(self, stall_seconds: float) -> str | None:
        """Why the connection is to be cut; None if it is not stalled in the middle of a request.

        It is if nothing was received for ``stall_seconds``, or if a large request arrives too slowly while others wait
        for its memory.
        """
        quiet = self.quiet_seconds
        if quiet >= stall_seconds and not self.reader.is_idle:
            return f"it sent half a request and then nothing for {quiet:.0f} s"
        if self._share is not None and quiet >= 0 and self._share.is_too_slow(self.reader.large_size):
            return "others wait for the memory of a request that comes too slowly"
        return None

    def _free(self) -> None:
        if self._share is not None:
            self._share.close()
            self._share = None
