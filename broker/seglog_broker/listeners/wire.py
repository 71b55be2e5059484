"""What a wire protocol gives to the connections that speak it."""

from collections.abc import Awaitable, Sequence
from typing import Any

from mypy_extensions import mypyc_attr

from seglog_broker.listeners.request_errors import AppendOutcome
from seglog_protocol.errors import SeglogError
from seglog_protocol.frame_receiver import Buffer, FrameReceiver


@mypyc_attr(allow_interpreted_subclasses=True)
class Wire:
    """The protocol of one connection: it finds requests in bytes, serves them, and encodes what they are answered.

    ``Connection`` receives, gives turns, bounds what is done in one, waits for acks and memory, and ends. The wire of a
    connection uses it for that, and is used by it alone.
    """

    is_ordered = False
    """Whether responses have the order of requests: then a request is served when those before it are answered, and one
    that waits holds up those behind it. Only appends are served before that, and answered in their order."""

    is_framed = True
    """The ``reader`` has all that came and is not served. Set per instance: compiled code sees no class's own."""

    reader: FrameReceiver
    """Finds whole frames in the bytes that come."""

    @property
    def is_waiting(self) -> bool:
        """Whether a request waits without a task, so that the connection is not idle."""
        return False

    def greet(self) -> Awaitable[bool] | None:
        """To be awaited: the exchange that comes before all requests, False if the connection is to end instead.

        None if the protocol has none.
        """
        return None

    def kept(self, frame: Any) -> Any:
        """A frame of the reader, in memory that stays as it is when the turn is over."""
        raise NotImplementedError

    def serve_later(self, frame: Any) -> None:
        """Serve a frame that was ``kept`` before all others. No fault meets it again."""
        raise NotImplementedError

    def serve_next(self) -> bool:
        """Serve the next whole frame, or begin to; False if none has come. Raises RemoteProtocolError for bad bytes."""
        raise NotImplementedError

    def encode_appended(
        self, request_ids: Sequence[Any], outcomes: Sequence[AppendOutcome], began: float
    ) -> Buffer | None:
        """The frames that answer appends. None if they are so long that ``encode_long_appended`` has to do it.

        They, and their errors, are added to the metrics: their requests were taken up at ``began``, by
        ``time.perf_counter``.
        """
        raise NotImplementedError

    def encode_long_appended(
        self, request_ids: Sequence[Any], outcomes: Sequence[AppendOutcome], began: float
    ) -> Awaitable[Buffer]:
        """To be awaited: as ``encode_appended``, for any length; other tasks run in between."""
        raise NotImplementedError

    def note_unanswered(self, request_ids: Sequence[Any], errors: Sequence[SeglogError], began: float) -> None:
        """Add appends of one request that get no answer to the metrics, with their errors."""
        raise NotImplementedError

    def last_frame(self, error: SeglogError) -> Buffer:
        """The frame that is sent before a connection ends by ``error``; empty if the protocol has none."""
        raise NotImplementedError

    def look(self, now: float) -> None:
        """Called every few seconds, ``now`` by trio's clock, for a protocol that has limits of its own on time."""

    def stop(self, reason: str) -> None:
        """Answer at once what waits, because the broker stops or ends this connection: the ``reason`` says which."""

    def finish(self) -> Awaitable[None] | None:
        """To be awaited before ``drop``: nothing more is served, and what has begun is answered. None: nothing has."""
        return None

    def drop(self) -> None:
        """The peer reads no more, or the connection is lost: what waits is dropped."""

    def detach(self) -> None:
        """The connection has ended: refer to it no more, because the two would be a cycle."""
        raise NotImplementedError
