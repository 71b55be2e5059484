"""The task of a connection, from its beginning to its end: it does what turns may not do, which is to wait."""

import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar

import trio

from seglog_broker.engine.pending_appends import Acknowledged
from seglog_broker.listeners import ack_task, admission, hangup, socket_loop
from seglog_broker.listeners.connection import Connection, Job, State, UnfinishedAppend, Wait
from seglog_broker.listeners.end_reasons import EndReason
from seglog_broker.listeners.ready_sockets import Next
from seglog_broker.listeners.request_errors import AppendOutcome, as_seglog_error
from seglog_broker.listeners.sending import FileShrankError, flush
from seglog_broker.listeners.tls_transport import HANDSHAKE_SECONDS, why_failed
from seglog_broker.runtime.slow_readers import CutError
from seglog_protocol.errors import RemoteProtocolError, TlsRequiredError
from seglog_protocol.frame_receiver import RECEIVE_BYTES
from seglog_protocol.messages import AppendRequest

MUTED_SECONDS_MAX: Final = 1
"""The longest that a peer above its quota waits for each request when it has finished sending."""

ResultT = TypeVar("ResultT")


async def run(connection: Connection) -> None:
    """Serve until the peer leaves, breaks the protocol, or ``stop`` is called. Raises nothing but Cancelled."""
    try:
        beginning = connection.transport.begin()
        if (beginning is None or await _shake_hands(connection, beginning)) and await _greet(connection):
            async with trio.open_nursery() as connection.nursery:
                try:
                    await _serve_requests(connection)
                    if (begun := connection.wire.finish()) is not None:
                        await begun  # it may add to the acks
                finally:
                    connection.wire.drop()
                connection.acks.finish()
        if connection.session.has_failed:
            connection.note_reason(EndReason.AUTHENTICATION_FAILED)
        await _close(connection)
    except* OSError as lost:
        connection.log.debug("connection_lost", error=str(lost.exceptions[0]))
    except* CutError as cut:
        connection.note_reason(EndReason.SLOW_READER)
        connection.log.warning("connection_cut", reason=str(cut.exceptions[0]))
    except* FileShrankError as shrank:
        connection.log.error("fetch_cut_short", error=str(shrank.exceptions[0]))  # noqa: TRY400 - a file, not a bug
    except* Exception:
        connection.note_reason(EndReason.CRASHED)
        connection.log.exception("connection_crashed")
    finally:
        connection.detach()


async def _shake_hands(connection: Connection, handshake: Awaitable[None]) -> bool:
    """Begin TLS; False if the connection is to end instead."""
    reason = f"it took longer than {HANDSHAKE_SECONDS} s"
    connection.intake.quiet_since = trio.current_time()  # it may be one that says nothing
    with trio.move_on_after(HANDSHAKE_SECONDS):
        try:
            await handshake
        except TlsRequiredError as error:
            connection.end_by(error)
            return False
        except OSError as error:
            reason = why_failed(error)
        else:
            connection.intake.quiet_since = math.inf
            connection.session.note_handshake()
            return not connection.session.has_failed
    await connection.broker.turn()  # thousands that began together, or leave together, would end in one
    connection.broker.metrics.tls_handshakes_failed += 1
    connection.note_reason(EndReason.TLS_FAILED)
    connection.log.info("tls_handshake_failed", reason=reason)
    connection.state = State.FINISHED
    return False


async def _greet(connection: Connection) -> bool:
    """The wire's own beginning; False if the connection is to end instead."""
    greeting = connection.wire.greet()
    return greeting is None or await greeting


async def receive_first(connection: Connection) -> memoryview | None:
    """Receive outside of a turn: a view of the new bytes, empty at the end of the connection; None if none came."""
    connection.settle()
    connection.intake.quiet_since = trio.current_time()
    await connection.transport.wait_readable()
    if connection.transport.is_encrypted:
        await connection.broker.turn()  # very many may send what takes long to decrypt
    connection.intake.quiet_since = math.inf
    return memoryview(b"") if connection.state is State.STOPPING else connection.intake.receive()


async def meets_fault(connection: Connection, frame: Any) -> bool:
    """True if a fault has answered a frame that came before all requests; it may also hold the frame up."""
    job = None if connection.faults is None else connection.faults.take(connection, frame)
    if job is None:
        return False
    await job()
    await flush(connection.sender)
    if connection.waiting_request is None:
        return True
    connection.take_waiting()  # it was kept, and is answered by the caller
    return False


async def take_memory_for(connection: Connection, frame: memoryview) -> None:
    """Wait for memory for a frame that is kept while others are served, unless it is small or has some."""
    if not connection.intake.has_share and len(frame) > RECEIVE_BYTES:
        await admission.take(connection.intake, len(frame))


async def wait_for(
    connection: Connection, serve: Callable[[], Awaitable[ResultT]], *, until_stop: bool = False
) -> ResultT | None:
    """What ``serve`` returns, which may take minutes. None if the peer leaves first.

    With ``until_stop`` also if the broker stops first. Nothing else is read meanwhile.
    """
    if until_stop and connection.state is not State.OPEN:
        return None
    waiting, watching = trio.CancelScope(), trio.CancelScope()
    connection.start_soon(partial(_watch_peer, connection, waiting, watching))
    connection.until_stop = waiting if until_stop else None
    try:
        with waiting:
            return await serve()
    finally:
        connection.until_stop = None
        watching.cancel()
    return None


async def _serve_requests(connection: Connection) -> None:
    """Serve requests in order of arrival; return when the peer sends no more."""
    try:
        while not connection.is_over:
            has_work = connection.has_work
            connection.intake.quiet_since = math.inf if has_work else trio.current_time()
            begin = Next.TURN if has_work or connection.transport.has_pending else Next.READABLE
            await socket_loop.take_turns(
                connection.ready, connection.transport, connection, connection.run_of_appends, begin=begin
            )
            connection.intake.quiet_since = math.inf
            if connection.failure is not None:
                raise connection.failure
            while connection.job is not None:
                job, connection.job = connection.job, None
                await connection.usage.timed(do(connection, job))
                del job  # and the request in it
            if connection.waiting_request is None:
                connection.intake.free_unused()
            await flush(connection.sender)
            if connection.acks.is_full:
                await ack_task.wait_while(connection.acks, lambda: connection.acks.is_full)
            if connection.usage.muted_until:
                await _wait_while_muted(connection)
    except (MemoryError, RemoteProtocolError) as error:
        connection.end_by(error)


async def do(connection: Connection, job: Job) -> None:
    """Do what a turn has left."""
    if job is Wait.MEMORY:
        await flush(connection.sender)
        await admission.wait_for_memory(connection.intake)
    elif job is Wait.ACKS:
        await flush(connection.sender)
        await ack_task.wait_while(connection.acks, lambda: connection.acks.unanswered)
    elif job is Wait.RELEASE:
        await _wait_while_held(connection)
    elif isinstance(job, UnfinishedAppend):
        await _finish_append(connection, job)
    else:
        await job()


async def _wait_while_muted(connection: Connection) -> None:
    """Wait until the client may go on. A peer that has finished sending is read to its end: nothing of it is lost.

    It waits for each of its requests, too, or whoever finishes sending could use what its quota does not give; but it
    does not keep its place as long as it may have to wait.
    """

    async def end_when_left() -> None:
        await hangup.wait_until_left(connection.transport)
        if connection.state is State.OPEN:
            await trio.sleep(MUTED_SECONDS_MAX)
        nursery.cancel_scope.cancel()

    if not connection.is_over:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(end_when_left)
            await connection.usage.wait()
            nursery.cancel_scope.cancel()
    connection.usage.unmute()


async def _wait_while_held(connection: Connection) -> None:
    """Wait for ``release``."""
    if connection.is_held and not connection.is_over:
        with trio.CancelScope() as connection.while_held:
            await hangup.wait_until_left(connection.transport)
            # ``stop`` shuts our side, which looks the same from here; the wire ends the wait then.
            if connection.state is not State.STOPPING:
                connection.state = State.FINISHED
                return
            await trio.sleep_forever()


async def _watch_peer(connection: Connection, waiting: trio.CancelScope, watching: trio.CancelScope) -> None:
    """Cancel ``waiting`` when the peer leaves, until ``watching`` is cancelled."""
    with watching:
        await trio.lowlevel.checkpoint_if_cancelled()  # the next wait for this socket may have begun by now
        await hangup.wait_until_left(connection.transport)
        if connection.state is not State.STOPPING:  # a stop looks the same from here
            connection.state = State.FINISHED
            waiting.cancel()


async def _finish_append(connection: Connection, append: UnfinishedAppend) -> None:
    """Write the rest. Nothing else is read meanwhile, so that appends keep their order."""
    await take_memory_for(connection, append.frame)
    await flush(connection.sender)
    outcome: Acknowledged | list[AppendOutcome] = append.pending
    try:
        await append.pending.write_rest()
    except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
        outcome = [as_seglog_error(error, AppendRequest.api)] * len(append.request_ids)
    connection.answer_appends(append.request_ids, append.ack, outcome, len(append.frame))
    connection.intake.give_back(append.frame)


async def _close(connection: Connection) -> None:
    """Send what is left and the last frame, and close so that they arrive."""
    if connection.last_frame:
        connection.sender.queue(connection.last_frame)
        with trio.move_on_after(hangup.CLOSE_SECONDS_MAX):
            await flush(connection.sender)
    else:
        await flush(connection.sender)
    if connection.state is not State.FINISHED:
        await hangup.finish(connection.transport)
