"""One native connection without its socket: requests in, bytes out; bytes in, replies out.

Nothing here reads, writes, waits or looks at a clock, so the blocking face, the trio face and every test share it.
Replies are matched by ``id`` alone: one that nobody asked for, or no longer waits for, is dropped in silence, which is
what lets a cancelled call leave the connection in step.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from seglog_protocol.errors import ConnectionLostError, LocalProtocolError, RemoteProtocolError, error_from_wire
from seglog_protocol.frames import FRAME_BYTES_MAX, Buffer, FrameReader, encode_frame_prefix
from seglog_protocol.messages import NATIVE_PORT, Request, request_header

JOIN_BYTES_MAX: Final = 4096
"""Payloads up to this size are copied behind the header: one buffer costs less than a second entry in ``sendmsg``."""

WRITE_BUFFERS_MAX: Final = 256
"""Buffers handed to one ``sendmsg``: well under the smallest IOV_MAX in use (1,024)."""

STALLED_SECONDS: Final = 0.5
"""When the other end takes no bytes for so long, its writer looks at what else there is to do."""


class Reply(NamedTuple):
    """A reply that somebody waits for. ``payload`` belongs to it alone and may be kept."""

    request_id: int
    header: dict[str, Any]
    payload: memoryview


class Unsent:
    """The part of a frame that has not been written yet."""

    def __init__(self, buffers: Iterable[Buffer]) -> None:
        self._views = [memoryview(buffer) for buffer in buffers if len(buffer)]
        self._first = 0
        self.is_started = False
        """Whether some of it is gone: from then on only the rest of it keeps the two ends in step."""

    @property
    def is_done(self) -> bool:
        """Whether nothing is left."""
        return self._first == len(self._views)

    def buffers(self) -> list[memoryview]:
        """What to write next, as many buffers as one call may take."""
        return self._views[self._first : self._first + WRITE_BUFFERS_MAX]

    def written(self, count: int) -> None:
        """The first ``count`` bytes of ``buffers`` are gone."""
        self.is_started = self.is_started or count > 0
        while count:
            view = self._views[self._first]
            step = min(count, len(view))
            count -= step
            self._views[self._first] = view[step:]
            if step == len(view):
                self._first += 1


class Connection:
    """The client's end of one connection.

    ``send`` gives the buffers to write, in order and whole: whoever fails half-way has to close the socket. Received
    bytes go in with ``receive_data``, or without a copy through ``get_buffer`` and ``received``; ``next_reply`` gives
    what they complete. After an error from ``next_reply`` or ``receive_end`` the connection is over.
    """

    def __init__(self, server: str = "", frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.server = server
        self._frames = FrameReader(frame_bytes_max)
        self._next_id = 1
        self._expected: set[int] = set()
        self._is_known = False  # whether the peer has sent anything that a seglog broker would

    # --- Sending ------------------------------------------------------------------------------------------------------

    def send(
        self, request: Request, payload: Sequence[Buffer] = (), *, is_answered: bool = True
    ) -> tuple[int, list[Buffer]]:
        """The request's id and the buffers that make up its frame.

        LocalProtocolError, and nothing changed, when the request does not fit a header.
        """
        request_id = self._next_id
        payload_size = sum(map(len, payload))
        try:
            prefix = encode_frame_prefix(request_header(request_id, request), payload_size)
        except OverflowError as error:
            raise LocalProtocolError(
                f"a number in the {request.api} request fits no field: the smallest is -2**63, the largest 2**64 - 1"
            ) from error
        self._next_id += 1
        if is_answered:
            self._expected.add(request_id)
        if payload_size <= JOIN_BYTES_MAX:
            return request_id, [b"".join((prefix, *payload))]
        return request_id, [prefix, *payload]

    def abandon(self, request_id: int) -> None:
        """Nobody waits for this reply any more: drop it when it comes."""
        self._expected.discard(request_id)

    # --- Receiving ----------------------------------------------------------------------------------------------------

    def get_buffer(self) -> memoryview:
        """Where to receive into; never empty."""
        return self._frames.get_buffer()

    def received(self, size: int) -> None:
        """``size`` bytes were written at the start of the last ``get_buffer``."""
        self._frames.received(size)

    def receive_data(self, data: Buffer) -> None:
        """Take bytes that were received elsewhere."""
        self._frames.receive_data(data)

    def receive_end(self) -> ConnectionLostError:
        """The peer closed its side: what that means for everybody who waits.

        Without a word before, it may be a broker that is being stopped or a proxy before one that is not up yet, just
        as well as something else; only another attempt can tell.
        """
        if not self._is_known:
            return ConnectionLostError(
                f"{self.server} closed the connection without an answer: a broker that is just starting or stopping, "
                f"or something that does not speak the seglog protocol; the native port is {NATIVE_PORT} by default",
                server=self.server,
            )
        where = "between two answers" if self._frames.is_idle else "in the middle of an answer"
        return ConnectionLostError(f"{self.server} closed the connection {where}", server=self.server)

    def next_reply(self) -> Reply | None:
        """The next reply that somebody waits for, or None when more bytes are needed.

        RemoteProtocolError when what came is no reply; an error that the broker sends for the connection as a whole
        (without an id) is raised as it is.
        """
        while True:
            try:
                frame = self._frames.next_frame()
                if frame is None:
                    return None
                request_id = self._id_of(frame.header)
            except RemoteProtocolError as error:
                if self._is_known:
                    raise
                raise self._stranger(error.message) from error
            self._is_known = True
            if request_id in self._expected:
                self._expected.discard(request_id)
                return Reply(request_id, frame.header, frame.payload)

    def _id_of(self, header: Mapping[str, Any]) -> int:
        request_id = header.get("id")
        if type(request_id) is int:
            return request_id
        error = header.get("error")
        if isinstance(error, Mapping):
            raise error_from_wire(error)
        raise RemoteProtocolError("an answer came without an id")

    def _stranger(self, detail: str) -> RemoteProtocolError:
        return RemoteProtocolError(
            f"what answers at {self.server} does not speak the seglog protocol ({detail}); "
            f"the native port is {NATIVE_PORT} by default"
        )
