"""Appends that connections have received together, written together.

Sixteen producers with one small request each cost little more than one with sixteen: one look at the batches, one
write, one pass of the indexes for all that go to the same partition.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from seglog_broker.api.broker import Broker
from seglog_broker.engine.pending_appends import Acknowledged, AppendsPart
from seglog_broker.listeners.ready_sockets import ReadySockets, Served, Together
from seglog_broker.listeners.request_errors import AppendOutcome, as_seglog_error
from seglog_broker.listeners.usage import Usage
from seglog_broker.runtime.request_memory import RECEIVE_BYTES_MAX
from seglog_broker.runtime.usage_buckets import Worked
from seglog_protocol.frame_receiver import ReceiveBuffer
from seglog_protocol.messages import AppendRequest

BATCHES_AT_ONCE: Final = 256
"""The most batches that are written together, but for those of one more request."""


class Producing(Served):
    """A connection that appends. What identifies a request is up to its wire protocol."""

    def answer_appends(
        self, request_ids: Sequence[Any], ack: object, outcome: Acknowledged | list[AppendOutcome], size: int
    ) -> None:
        """Answer appends, now or when their ack is reached; ``size`` is that of their payloads in bytes."""
        raise NotImplementedError

    usage: Usage
    """Of its client."""

    def start_soon(self, task: Callable[[], Awaitable[None]]) -> None:
        """Start a task that the connection's end waits for."""
        raise NotImplementedError

    def fail(self, error: BaseException) -> None:
        """Raise ``error`` in the connection's task."""
        raise NotImplementedError


class _Append:
    __slots__ = ("connection", "payload", "request", "request_id")

    def __init__(self, connection: Producing, request_id: Any, request: AppendRequest, payload: memoryview) -> None:
        self.connection = connection
        self.request_id = request_id
        self.request = request
        self.payload = payload


class AppendRun(Together):
    """Gathers appends until ``write``; they lie in ``buffer``, which all connections of the listener receive into."""

    def __init__(self, broker: Broker, ready: ReadySockets) -> None:
        self.buffer = ReceiveBuffer(RECEIVE_BYTES_MAX)
        self.batches_max = BATCHES_AT_ONCE
        self._broker = broker
        self._ready = ready
        self._appends: list[_Append] = []
        self._batches = 0  # of these appends

    @property
    def has_room(self) -> bool:
        """Whether another connection may receive before ``clear``."""
        return self.buffer.has_room

    def add(self, connection: Producing, request_id: Any, request: AppendRequest, payload: memoryview) -> None:
        """Gather an append that is plain (``AppendService.is_plain``)."""
        appends = self._appends
        if appends and (self._batches >= self.batches_max or appends[0].request.ack != request.ack):
            self.write()
            appends = self._appends
        appends.append(_Append(connection, request_id, request, payload))
        self._batches += len(request.partitions)

    def clear(self) -> None:
        """Free the buffer: what was received is not used any more."""
        self.buffer.clear()

    def write(self) -> None:
        """Write what is gathered, and have each connection answer its part."""
        appends = self._appends
        if not appends:
            return
        self._appends, self._batches = [], 0
        requests = [append.request for append in appends]
        shared: Worked | None = None
        before: Worked | None = None
        if appends[0].connection.usage.is_timed:
            shared = Worked()
            before = self._broker.usage_buckets.loop_time.give_to(shared)
        pending: Acknowledged | None = None
        failed: list[AppendOutcome] = []
        try:
            pending = self._broker.append(requests, [append.payload for append in appends], at_once=True)
            if requests[0].ack == "disk":
                if self._ready.is_alone:
                    self._broker.sync_now()
                self._broker.sync_soon(appends[0].connection.start_soon)
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            failed = [as_seglog_error(error, AppendRequest.api)]
        if shared is not None:
            self._broker.usage_buckets.loop_time.give_to(before)
        begin = 0
        while begin < len(appends):
            connection, end = appends[begin].connection, begin + 1
            while end < len(appends) and appends[end].connection is connection:
                end += 1
            of_one = appends[begin:end]
            if shared is not None:
                connection.usage.seconds += shared.seconds * len(of_one) / len(appends)
            outcome: Acknowledged | list[AppendOutcome] = failed * len(of_one)
            if pending is not None:
                outcome = pending if len(of_one) == len(appends) else AppendsPart(pending, begin, end)
            try:
                size = sum([len(append.payload) for append in of_one])
                connection.answer_appends([append.request_id for append in of_one], requests[0].ack, outcome, size)
            except BaseException as error:  # noqa: BLE001 - one connection must not end the others
                connection.fail(error)
            begin = end
