"""Sending: ``pipeline`` tasks per connection, each with one request in flight."""

import time

import trio

from seglog.load.batches import BatchMaker
from seglog.load.schedule import Schedule, Ticket
from seglog.load.session import ACKNOWLEDGED, LATE, Session
from seglog.raw import RawBatch
from seglog.trio import raw
from seglog.trio.client import Client
from seglog_protocol.compression import Codec
from seglog_protocol.errors import SeglogError


def batch_maker(session: Session, *, stamp_id: bytes | None = None) -> BatchMaker:
    """A BatchMaker for the plan, within the topic's limits."""
    plan, topic = session.plan, session.topic
    return BatchMaker(
        record_size=plan.record_size,
        batch_bytes=min(plan.batch_bytes, topic.max_message_bytes, topic.segment_bytes),
        batch_records=plan.batch_records,
        codec=Codec[plan.compression.upper()],
        seed=plan.seed,
        stamp_id=stamp_id,
    )


def schedule_of(session: Session, maker: BatchMaker) -> Schedule:
    """The plan's schedule, from now on."""
    plan = session.plan
    return Schedule(
        began=trio.current_time(),
        batch_records=maker.records_max,
        rate=plan.rate,
        warmup=plan.warmup,
        duration=plan.duration,
        count=plan.count,
    )


class Sending:
    """The senders of a run; ``run`` returns when the schedule is over and all requests are answered."""

    def __init__(self, session: Session, maker: BatchMaker, schedule: Schedule) -> None:
        self._session = session
        self._maker = maker
        self._schedule = schedule
        self._turn = trio.Lock()  # one task waits for the next ticket's time, so that batches are sent in order

    async def run(self) -> None:
        """Send all batches of the schedule, over all connections."""
        session = self._session
        async with trio.open_nursery() as nursery:
            for client in session.clients:
                for _ in range(session.plan.pipeline):
                    nursery.start_soon(self._send_all, client)
        if session.plan.ack == "none" and session.control.ended_by is None:
            await self._catch_up()
        if self._schedule.ended_by is not None:
            session.control.end(self._schedule.ended_by)

    async def _send_all(self, client: Client) -> None:
        attempts = 0
        while (ticket := await self._next()) is not None:
            error = await self._send(client, ticket)
            if error is None:
                attempts = 0
            elif await self._session.failed(error, attempts):
                attempts += 1
            else:
                return

    async def _next(self) -> Ticket | None:
        session, schedule = self._session, self._schedule
        async with self._turn:
            if session.control.ended_by is not None:
                schedule.stop(session.control.ended_by)
            ticket = schedule.take(trio.current_time())
            if ticket is not None and ticket.due > trio.current_time():
                await session.sleep_until(ticket.due)
            return ticket

    async def _send(self, client: Client, ticket: Ticket) -> SeglogError | None:
        """Send one batch; returns its error, if any."""
        session, measurement = self._session, self._session.measurement
        partition = ticket.number % session.topic.partitions
        data = self._maker.make(ticket.number, ticket.records, time.time_ns() // 1_000_000, ticket.due)
        began = trio.current_time()
        if ticket.is_measured:
            measurement.begin(self._schedule.measured_from)
        if self._schedule.rate is not None:
            if ticket.is_measured:
                measurement.took(LATE, began - ticket.due, ticket.records)
            began = ticket.due
        measurement.in_flight += 1
        try:
            result = (await raw.append(client, [RawBatch(session.topic.name, partition, data)], ack=session.plan.ack))[
                0
            ]
        except SeglogError as error:
            result = error
        # After a cancellation it stays in flight: its result is unknown.
        measurement.in_flight -= 1
        if isinstance(result, SeglogError):
            return result
        if ticket.is_measured:
            measurement.took(ACKNOWLEDGED, trio.current_time() - began, ticket.records)
            measurement.sent.add(ticket.records, len(data))
            measurement.touch()
        return None

    async def _catch_up(self) -> None:
        """Wait until the broker has processed unanswered appends: it answers a later request after them."""
        session = self._session
        for client in session.clients:
            try:
                await client.offsets(session.topic.name)
            except SeglogError as error:
                session.count(error)
        session.measurement.touch()
