"""One connection, whatever protocol it speaks: from its first bytes to its last.

Requests are served in turns by plain functions (``ReadySockets``). What has to wait is left to the connection's own
task (``connection_task``), as a job that is done before the next turn, or to tasks in its nursery. A failure of any of
them ends the connection and nothing else. The protocol is the ``Wire``'s.

========== ======== ================ ================== ============================================================
state      receives serves what came answers what waits then
========== ======== ================ ================== ============================================================
OPEN       yes      yes              when it is there   STOPPING by ``stop``, FINISHED by its peer, ENDING by an error
STOPPING   no       yes              at once, with an   ENDING when all that came is served
                                     error
FINISHED   no       no               no: its peer sends closed when what was appended is answered
                                     nothing more
ENDING     no       no               no                 the last frame, if there is one, and an orderly close
========== ======== ================ ================== ============================================================

Appends are answered in all states. Within OPEN and STOPPING at most one of these holds up the next turn: a ``job``; a
request that waits without a task, on a wire with ordered responses (``is_held``); a full queue of acks; a reply that
the peer does not take; or a quota of its client (``Usage``).
"""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final

import trio

from seglog_broker.api.broker import Broker
from seglog_broker.engine.pending_appends import Acknowledged, PendingAppends
from seglog_broker.listeners import ack_task
from seglog_broker.listeners.append_run import AppendRun, Producing
from seglog_broker.listeners.end_reasons import EndReason
from seglog_broker.listeners.faults import Faults
from seglog_broker.listeners.intake import Intake
from seglog_broker.listeners.ready_sockets import Next, ReadySockets
from seglog_broker.listeners.request_errors import AppendOutcome, append_errors, as_seglog_error
from seglog_broker.listeners.sender import AckQueue, Sender
from seglog_broker.listeners.session import WITHOUT_AUTHENTICATION, Listener, Session
from seglog_broker.listeners.transport import Transport
from seglog_broker.listeners.usage import Usage
from seglog_broker.listeners.wire import Wire
from seglog_broker.logger import get_logger
from seglog_broker.runtime import budget
from seglog_protocol.errors import InconsistentTopicIdError, RemoteProtocolError, SeglogError
from seglog_protocol.frame_receiver import Buffer, has_own_buffer
from seglog_protocol.messages import Ack, AppendRequest

GATHERED_COST: Final = 8.0
"""Microseconds for an append of one batch that is written together with others."""

log = get_logger()


class State(Enum):
    """Where a connection is in its life; the table above says what each allows."""

    OPEN = "open"
    STOPPING = "it reads no more, and answers what has come"
    FINISHED = "the peer has finished sending"
    ENDING = "it ends"


class Wait(Enum):
    """What the connection's task may have to wait for before the next turn."""

    MEMORY = "memory for the next part of a large request"
    ACKS = "the acks of all appends, because responses have the order of requests"
    RELEASE = "the end of a request that waits without a task: more has come, which is not to be received yet"


class UnfinishedAppend:
    """An append whose rest takes several turns of the loop, or a worker process; the connection's task writes it."""

    __slots__ = ("ack", "frame", "pending", "request_ids")

    def __init__(self, request_ids: Sequence[Any], ack: Ack, frame: memoryview, pending: PendingAppends) -> None:
        self.request_ids = request_ids
        self.ack: Ack = ack
        self.frame = frame
        self.pending = pending


Job = Wait | UnfinishedAppend | Callable[[], Awaitable[None]]
"""What the connection's task has to do before the next turn."""

_FINISHED: Final = State.FINISHED
_ENDING: Final = State.ENDING


class Connection(Producing):
    """Serves the peer of ``transport``, and closes it."""

    nursery: trio.Nursery
    """For tasks that the connection's end waits for; there is none before its requests are served."""

    def __init__(
        self,
        broker: Broker,
        transport: Transport,
        make_wire: "Callable[[Connection], Wire]",
        ready: ReadySockets,
        run: AppendRun,
        faults: Faults | None = None,
        accepted_by: Listener = WITHOUT_AUTHENTICATION,
    ) -> None:
        """``ready`` gives it its turns, with those that share ``run``; ``faults`` are asked about each request."""
        self.broker = broker
        self.counts = broker.metrics.listener(accepted_by.label)
        self.transport = transport
        self.run_of_appends = run
        self.faults = faults
        stall_seconds = broker.config.seglog_connections_max_stall_ms / 1000
        self.sender = Sender(transport, broker.offload, broker.transfers, stall_seconds)
        self.session = Session(broker, accepted_by, transport)
        self.usage = Usage(broker, self.session)
        self.state = State.OPEN
        self.job: Job | None = None
        self.is_held = False
        """Whether nothing is served because a request waits without a task."""
        self.spent = 0.0
        """What the turn has cost so far, in microseconds (``budget``)."""
        self.ready = ready
        self.wire = make_wire(self)
        self.intake = Intake(transport, self.wire.reader, broker.request_memory)
        self.acks = AckQueue(self.sender, self.wire)
        self._acks_running = False
        self._has_frames = True  # perhaps: true until the wire finds no whole one
        self._gathered = 0  # appends of this turn in the run
        self._gathered_bytes = 0  # of their payloads
        self.began = 0.0
        """When the request that is served was taken up, by ``time.perf_counter``."""
        self.waiting_request: Any = None
        """To be served before any other frame; ``take_waiting`` takes it."""
        self._waiting_since = 0.0  # when that was taken up
        self._waiting_bytes = 0  # of it, in memory that is in no share
        self.failure: BaseException | None = None
        """For its task."""
        self.while_held: trio.CancelScope | None = None
        """The wait of its task until ``release``."""
        self.until_stop: trio.CancelScope | None = None
        """Of a request that a stop ends."""
        self._has_reason = False  # to end, which is counted
        self.last_frame: Buffer = b""
        """Sent before closing: why the connection ends."""

    @property
    def log(self) -> Any:
        """A logger that names the peer, and its listener where that has a name; bound when something is logged."""
        name = self.session.listener.name
        return log.bind(peer=self.session.peer, **({"listener": name} if name else {}))

    def stop(self, reason: str = "the broker is stopping") -> None:
        """Begin to end the connection: read nothing more, answer what waits at once, finish other requests.

        The answers to requests that wait give the ``reason``.
        """
        if self.state is State.OPEN:
            self.state = State.STOPPING
        self.wire.stop(reason)
        if self.until_stop is not None:
            self.until_stop.cancel()
        self.intake.stop()
        self.transport.stop_receiving()

    def stop_if_quiet(self, idle_seconds: float, stall_seconds: float) -> None:
        """Begin to end the connection if it is idle, or stalled in the middle of a request.

        Idle: nothing received for ``idle_seconds``, and no request open. Stalled: nothing received for
        ``stall_seconds``, or a large request that arrives too slowly while others wait for its memory.
        """
        if self.state is State.STOPPING:
            return
        self.wire.look(trio.current_time())
        reason = self.intake.why_stalled(stall_seconds)
        if reason is not None:
            self.note_reason(EndReason.STALLED)
            self.log.warning("connection_cut", reason=reason)
            self.stop(f"this connection is closed: {reason}")
        elif self.intake.quiet_seconds >= idle_seconds and not (self.wire.is_waiting or len(self.acks)):
            self.note_reason(EndReason.IDLE)
            seconds = round(self.intake.quiet_seconds)
            self.log.debug("connection_idle", seconds=seconds)
            self.stop(f"this connection is closed: it was idle for {seconds} s")

    @property
    def idle_since(self) -> float:
        """Since when it waits for bytes with no request under way, by trio's clock; inf where it does not."""
        return math.inf if self.wire.is_waiting or len(self.acks) else self.intake.quiet_since

    def settle(self) -> None:
        """Keep what is left of what was received outside of a turn."""
        self.wire.reader.settle()
        self.run_of_appends.buffer.clear()

    # --- Turns --------------------------------------------------------------------------------------------------------

    def begin_turn(self) -> None:
        """Receive once and serve what came, or go on with what the last turn left: a bounded amount of work.

        Appends are gathered, to be written together with those of other connections.
        """
        if self.usage.muted_until:
            return  # ``end_turn`` leaves it to the task
        if self.usage.is_timed:
            self.usage.during(self._take_turn)
        else:
            self._take_turn()

    def _take_turn(self) -> None:
        if self.has_work or self._receive_more():
            self._serve_frames()

    @property
    def has_work(self) -> bool:
        """Whether there is something to be done before more is received."""
        return self._has_frames and not self.is_held

    def end_turn(self) -> Next:
        """Send the replies, and keep what is left of what was received. Raises MemoryError."""
        self._gathered = self._gathered_bytes = 0
        try:
            if self.job is None and not self.intake.keep_large_part():
                self.job = Wait.MEMORY
        finally:
            self.intake.settle(self._waiting_bytes)
        is_sent = self.sender.flush_now()
        if self.job is not None or self.is_over or not is_sent or self.acks.is_full or self.failure is not None:
            return Next.TASK
        if self.usage.muted_until:
            return Next.TASK
        if self.waiting_request is None:
            self.intake.free_unused()
        if self.has_work or self.transport.has_pending:
            return Next.TURN
        self.intake.quiet_since = self.ready.now
        return Next.READABLE

    def _receive_more(self) -> bool:
        """Receive what has come; False if there is nothing to be served."""
        if self.state is State.STOPPING or self.state is _ENDING:
            self.state = State.ENDING
            return False
        if self.wire.reader.wanted and not self.intake.take_memory():  # only now: it costs none until its bytes come
            self.job = Wait.MEMORY
            return False
        received = self.intake.receive()
        if received is None:
            return False
        self.intake.quiet_since = math.inf  # until it waits for bytes again
        if not received:
            self.state = State.FINISHED
            return False
        self._has_frames = True
        if self.is_held:
            self.job = Wait.RELEASE
            return False
        return True

    def _serve_frames(self) -> None:
        """Serve whole frames in their order, up to a turn's work, or until the task has to do something."""
        self.spent = 0.0
        room, room_bytes = self.acks.room
        wire = self.wire
        try:
            while (
                self.spent < budget.TURN
                and self._gathered < room
                and self._gathered_bytes < room_bytes
                and not self.is_blocked
            ):
                if not wire.serve_next():
                    self._has_frames = False
                    break
            if wire.is_framed and wire.reader.is_idle and self.waiting_request is None:
                self._has_frames = False  # another turn would find none
        except RemoteProtocolError as error:
            self.write_gathered()  # what came before the bad bytes is served
            self.end_by(error)

    @property
    def is_over(self) -> bool:
        """Whether nothing more is read or served."""
        return self.state is _FINISHED or self.state is _ENDING

    @property
    def is_left(self) -> bool:
        """Whether the peer ended it, and not the broker."""
        return not self._has_reason and (self.state is State.OPEN or self.state is _FINISHED)

    @property
    def is_blocked(self) -> bool:
        """Whether no other request may be served in this turn."""
        state = self.state
        if self.job is not None or self.is_held or self.acks.is_full or self.usage.muted_until:
            return True
        return state is _FINISHED or state is _ENDING

    def may_serve(self) -> bool:
        """Write the appends that were gathered, which come first; whether a request behind them may be served now.

        If not, pass it to ``serve_later``.
        """
        self.write_gathered()
        if self.wire.is_ordered and len(self.acks) and self.job is None:
            self.job = Wait.ACKS
        return not self.is_blocked and self.failure is None

    def meets_fault(self, frame: Any) -> bool:
        """Ask the faults about a frame that was taken from the reader; whether they do with it what is to be done."""
        assert self.faults is not None
        job = self.faults.take(self, frame)
        if job is None:
            return False
        self.write_gathered()
        self.job = job
        return True

    def serve_later(self, request: Any, payload: memoryview, size: int) -> None:
        """Keep a request, to be served before all others: ``take_waiting`` returns it then.

        Its ``size`` counts unless the payload has a buffer of its own, which is counted as it arrives.
        """
        self.waiting_request, self._waiting_bytes = request, 0 if has_own_buffer(payload) else size
        self._waiting_since = self.began
        self._has_frames = True

    def take_waiting(self) -> Any:
        """The request that was passed to ``serve_later``."""
        self.began = self._waiting_since
        request, self.waiting_request, self._waiting_bytes = self.waiting_request, None, 0
        return request

    # --- Requests that wait -------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Serve nothing before ``release``: a request waits, without a task, and holds up those behind it."""
        self.is_held = True
        if not self.wire.reader.is_idle:
            self.job = Wait.RELEASE

    def release(self) -> None:
        """Serve requests again."""
        self.is_held = False
        if self.while_held is not None:
            self.while_held.cancel()
            self.while_held = None

    def start_soon(self, task: Callable[[], Awaitable[None]]) -> None:
        """Start a task that the connection's end waits for."""
        self.nursery.start_soon(task)

    # --- Appends ------------------------------------------------------------------------------------------------------

    def note_gathered(self, appends: int, batches: int, size: int) -> None:
        """``appends`` of one request were added to the run, with payloads of ``size`` bytes."""
        self._gathered += appends
        self._gathered_bytes += size
        self.spent += GATHERED_COST if batches == 1 else batches * budget.BATCH

    def write_gathered(self) -> None:
        """Write what was gathered: it comes first."""
        if self._gathered:
            self.run_of_appends.write()
            self._gathered = self._gathered_bytes = 0

    def append(
        self,
        request_ids: Sequence[Any],
        requests: Sequence[AppendRequest],
        payloads: Sequence[memoryview],
        frame: memoryview,
        refused: Mapping[str, SeglogError] | None = None,
    ) -> None:
        """Serve the appends of one request alone. Their payloads are parts of ``frame``.

        ``refused`` holds the errors of topics that could not be created, or that the client may not write to.
        """
        ack = requests[0].ack
        try:
            pending = self.broker.append(requests, payloads, refused)
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            self.spent = budget.TURN
            failed: list[AppendOutcome] = [as_seglog_error(error, AppendRequest.api)] * len(request_ids)
            self.answer_appends(request_ids, ack, failed, len(frame))
        else:
            self.spent += pending.spent
            if not pending.is_written:
                if self.run_of_appends.buffer.has(frame):
                    pending.keep_payloads()
                self.job = UnfinishedAppend(request_ids, ack, frame, pending)
                return
            self.answer_appends(request_ids, ack, pending, len(frame))
        self.intake.give_back(frame)

    def answer_appends(
        self, request_ids: Sequence[Any], ack: object, outcome: Acknowledged | list[AppendOutcome], size: int
    ) -> None:
        """Answer appends now, or queue them. One with ack ``none`` that failed ends the connection."""
        replies = outcome if isinstance(outcome, list) else outcome.replies
        if ack == "none":
            assert replies is not None, "an ack that is not sent is not waited for"
            self._note_unanswered(request_ids, replies)
            return
        if replies is not None and not len(self.acks):
            frames = self.wire.encode_appended(request_ids, replies, self.began)
            if frames is not None:
                self.sender.queue(frames)
                return
        if not self._acks_running:
            self._acks_running = True
            self.nursery.start_soon(ack_task.run, self.acks)
        self.acks.add(request_ids, outcome if replies is None else replies, size, self.began)

    def _note_unanswered(self, request_ids: Sequence[Any], replies: Sequence[AppendOutcome]) -> None:
        """End the connection if appends with ack ``none`` failed: their sender can only be informed by that."""
        errors = append_errors(replies)
        self.wire.note_unanswered(request_ids, errors, self.began)
        if errors:
            self.log.warning("append_failed", ack="none", error=str(errors[0]), errors=len(errors))
            another = next((error for error in errors if isinstance(error, InconsistentTopicIdError)), None)
            # With the wrong topic ids it would reconnect and fail again, unless it learns of them.
            self.end(EndReason.APPEND_FAILED, b"" if another is None else self.wire.last_frame(another))

    # --- The end ------------------------------------------------------------------------------------------------------

    def detach(self) -> None:
        """The connection has ended: give everything back, and close."""
        # Both refer to this connection: cycles, which only the collector would find.
        self.wire.detach()
        self.failure = None
        self.session.end()
        self.usage.unmute()
        self.intake.end()
        self.transport.close()

    def note_reason(self, reason: EndReason) -> None:
        """Count why the broker ends the connection; the first reason is it."""
        if not self._has_reason:
            self._has_reason = True
            self.broker.metrics.connections_ended[reason.value] += 1

    def fail(self, error: BaseException) -> None:
        """Raise ``error`` in the connection's task."""
        self.failure = error

    def end(self, reason: EndReason, last_frame: Buffer = b"") -> None:
        """Read and serve nothing more, and close when what was served is answered, with ``last_frame`` behind it."""
        self.note_reason(reason)
        if self.state is not State.FINISHED:
            self.state = State.ENDING
        self.last_frame = self.last_frame or last_frame

    def end_by(self, error: MemoryError | RemoteProtocolError) -> None:
        """End because of bytes that are not of the protocol, or that have no room."""
        if isinstance(error, RemoteProtocolError):
            failure: SeglogError = error
            self.log.warning("connection_refused", reason=error.message)
        else:
            failure = as_seglog_error(error, "receive")
        self.counts.errors[failure.code] += 1
        reason = EndReason.PROTOCOL_ERROR if failure is error else EndReason.OUT_OF_MEMORY
        self.end(reason, self.wire.last_frame(failure))
