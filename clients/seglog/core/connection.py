"""One native connection without its socket: requests in, bytes out; bytes in, replies out.

No I/O, no waiting and no clock, so that all faces of the client and every test share it. Replies are
matched by ``id`` alone: an unexpected or abandoned reply is dropped, so a cancelled call leaves the connection usable.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from seglog_protocol import errors
from seglog_protocol.frame_receiver import FRAME_BYTES_MAX, Buffer, ReusedMemory
from seglog_protocol.frames import FrameReader, encode_packed_prefix
from seglog_protocol.messages import NATIVE_PORT, Request, pack_request, reply_id_of

JOIN_BYTES_MAX: Final = 4096
"""Payloads up to this size are copied after the header: cheaper than a second buffer in ``sendmsg``."""

WRITE_BUFFERS_MAX: Final = 256
"""Buffers passed to one ``sendmsg``: well under the smallest IOV_MAX in use (1,024)."""

STALLED_SECONDS: Final = 0.5
"""When the peer takes no bytes for so long, the writer calls ``on_stalled``."""


_TLS_ALERT: Final = b"\x15\x03"
"""How a server that speaks TLS begins its answer to anything else: an alert, of any version of TLS."""

Header = Mapping[str, Any] | Buffer
"""The header of a reply as ``decode_reply`` takes it: packed, or as a map."""


class Reply(NamedTuple):
    """A reply to a pending request. ``payload`` is not shared and may be kept."""

    request_id: int
    header: Header
    payload: memoryview


class Unsent:
    """The part of a frame that has not been written yet."""

    def __init__(self, buffers: Iterable[Buffer]) -> None:
        self._views = [memoryview(buffer) for buffer in buffers if len(buffer)]
        self._first = 0
        self.is_moving = False
        """Whether bytes may have been written that are not counted yet; set by the caller."""
        self.is_started = False
        """Whether some bytes have been written; then the rest must follow, or the connection is unusable."""

    @property
    def is_done(self) -> bool:
        """Whether nothing is left."""
        return self._first == len(self._views)

    def buffers(self) -> list[memoryview]:
        """The buffers to write next, as many as one call may take."""
        return self._views[self._first : self._first + WRITE_BUFFERS_MAX]

    def written(self, count: int) -> None:
        """Note that the first ``count`` bytes of ``buffers`` were written."""
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

    ``send`` returns the buffers to write, in order; a caller that writes only part of them has to close the socket.
    Received bytes go in with ``receive_data``, or without a copy through ``get_buffer`` and ``received``;
    ``next_reply`` returns the replies. After an error from ``next_reply`` or ``receive_end`` the connection is over.
    """

    def __init__(self, server: str = "", frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.server = server
        self._frames = FrameReader(frame_bytes_max, pool=ReusedMemory())
        self._next_id = 1
        self._expected: set[int] = set()
        self._is_known = False  # whether the peer has sent a valid frame, so it is a seglog broker

    def send(
        self, request: Request, payload: Sequence[Buffer] = (), *, is_answered: bool = True
    ) -> tuple[int, list[Buffer]]:
        """The request's id and the buffers of its frame.

        Raises LocalProtocolError, with nothing changed, when the request does not fit a header.
        """
        request_id = self._next_id
        payload_size = sum(map(len, payload))
        try:
            prefix = encode_packed_prefix(pack_request(request_id, request), payload_size)
        except OverflowError as error:
            raise errors.LocalProtocolError(
                f"a number in the {request.api} request is out of range: the smallest is -2**63, the largest 2**64 - 1"
            ) from error
        self._next_id += 1
        if is_answered:
            self._expected.add(request_id)
        if payload_size <= JOIN_BYTES_MAX:
            return request_id, [b"".join((prefix, *payload))]
        return request_id, [prefix, *payload]

    def abandon(self, request_id: int) -> None:
        """Drop this reply when it arrives."""
        self._expected.discard(request_id)

    def get_buffer(self) -> memoryview:
        """The buffer to receive into, never empty."""
        return self._frames.get_buffer()

    def received(self, size: int) -> None:
        """``size`` bytes were written at the start of the last ``get_buffer``."""
        self._frames.received(size)

    def receive_data(self, data: Buffer) -> None:
        """Add bytes that the caller received into a buffer of its own."""
        self._frames.receive_data(data)

    def receive_end(self) -> errors.ConnectionLostError:
        """The error for all waiting calls, after the peer closed its side.

        Without any reply before, the peer may be a broker that is stopping, a proxy whose broker is not up yet, or some
        other server; only another attempt can show which.
        """
        if not self._is_known:
            return errors.ConnectionLostError(
                f"{self.server} closed the connection without an answer: it is starting or stopping, or does not speak "
                f"the seglog protocol (its port is {NATIVE_PORT} by default)",
                server=self.server,
            )
        where = "between two answers" if self._frames.is_idle else "in the middle of an answer"
        return errors.ConnectionLostError(f"{self.server} closed the connection {where}", server=self.server)

    def next_reply(self) -> Reply | None:
        """The next expected reply, or None when more bytes are needed.

        Raises RemoteProtocolError for bytes that are not a reply, and the broker's own error when it sends one for the
        whole connection (without an id).
        """
        while True:
            try:
                frame = self._frames.next_frame()
                if frame is None:
                    return None
                request_id = reply_id_of(frame.packed)
                if request_id is None:
                    request_id = self._id_of(frame.header)
            except errors.RemoteProtocolError as error:
                if self._is_known:
                    raise
                if self._frames.peek(len(_TLS_ALERT)) == _TLS_ALERT:
                    raise self._speaks_tls() from error
                raise errors.RemoteProtocolError(
                    f"what answers at {self.server} does not speak the seglog protocol ({error.message}); "
                    f"the native port is {NATIVE_PORT} by default"
                ) from error
            self._is_known = True
            if request_id in self._expected:
                self._expected.discard(request_id)
                return Reply(request_id, frame.packed, frame.payload)

    def _id_of(self, header: Mapping[str, Any]) -> int:
        request_id = header.get("id")
        if type(request_id) is int:
            return request_id
        error = header.get("error")
        if isinstance(error, Mapping):
            was_known, self._is_known = self._is_known, True
            if error.get("code") == errors.TlsRequiredError.code:
                raise self._speaks_tls()
            failure = errors.error_from_wire(error)
            if was_known and isinstance(failure, errors.AuthenticationRequiredError):
                raise errors.ConnectionLostError(
                    f"the session at {self.server} has ended", server=self.server
                ) from failure
            raise failure
        raise errors.RemoteProtocolError("an answer came without an id")

    def _speaks_tls(self) -> errors.TlsError:
        return errors.TlsError(
            f"what answers at {self.server} speaks TLS: connect with seglogs://{self.server}, on the command line also "
            f"by --tls",
            server=self.server,
        )
