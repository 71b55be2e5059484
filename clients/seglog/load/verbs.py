"""The three verbs ``produce``, ``consume`` and ``roundtrip``, and the latency that each measures."""

import os
import time
from typing import Final

import trio

from seglog.core.consumer_options import ConsumerOptions
from seglog.core.records import FetchedBatch
from seglog.load.batches import stamp_of
from seglog.load.producing import Sending, batch_maker, schedule_of
from seglog.load.reading import Reading
from seglog.load.schedule import Schedule
from seglog.load.session import END_TO_END, FETCH, Session

ARRIVAL_SECONDS: Final = 5.0
"""How long after the last acknowledgement a round trip's records may take to arrive."""


async def produce(session: Session) -> Schedule:
    """Send until the schedule is over."""
    maker = batch_maker(session)
    schedule = schedule_of(session, maker)
    await Sending(session, maker, schedule).run()
    return schedule


async def consume(session: Session) -> None:
    """Read to the end, or with ``follow`` until the plan's bounds.

    Batches are verified and counted, not decoded. Latency is that of a fetch; with ``follow``, where fetches wait for
    records, it is from a batch's largest timestamp to its arrival, to the millisecond and by both machines' clocks.
    """
    plan, measurement = session.plan, session.measurement
    measured_from = trio.current_time() + plan.warmup

    def is_measured() -> bool:
        if trio.current_time() < measured_from:
            return False
        measurement.begin(measured_from)
        return True

    def on_answer(seconds: float, size: int) -> None:
        if is_measured():
            measurement.received.add(0, size)
            if not plan.follow:
                measurement.took(FETCH, seconds)

    def on_batch(batch: FetchedBatch) -> None:
        if not is_measured():
            return
        header = batch.header
        records = min(header.record_count, batch.end_offset - batch.start_offset)
        measurement.received.add(records, 0, requests=0)
        if plan.follow:
            measurement.took(END_TO_END, time.time() - header.max_timestamp / 1000, records)
        measurement.touch()
        if plan.count is not None and measurement.received.records >= plan.count:
            session.control.end("count")

    async def read() -> None:
        await reading.run()
        session.control.end("end")

    options = ConsumerOptions(start=plan.start, follow=plan.follow, partition_bytes=plan.batch_bytes)
    reading = Reading(session, options, on_answer, on_batch)
    await reading.find()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        with trio.move_on_at(float("inf") if plan.duration is None else measured_from + plan.duration):
            await session.control.ended()
        session.control.end("duration")
        nursery.cancel_scope.cancel()  # also cancels fetches that wait for records


async def roundtrip(session: Session) -> Schedule:
    """Send and read in the same process; latency is from a record's due time to its arrival."""
    measurement = session.measurement
    stamp_id = os.urandom(8)
    maker = batch_maker(session, stamp_id=stamp_id)
    schedule: Schedule | None = None
    arrived = trio.Event()
    is_sent = False

    def on_batch(batch: FetchedBatch) -> None:
        now_ns = round(trio.current_time() * 1e9)
        assert schedule is not None
        measured_from_ns = round(schedule.measured_from * 1e9)
        stamps = [stamp_of(record.value, stamp_id) for record in batch.stored()]
        waits = [(now_ns - due) // 1000 for due in stamps if due is not None and due >= measured_from_ns]
        if waits:
            measurement.took_all(END_TO_END, waits)
            measurement.received.add(len(waits), len(batch.data))
            measurement.touch()
        if is_sent and measurement.received.records >= measurement.sent.records:
            arrived.set()

    options = ConsumerOptions(start="latest", follow=True)
    reading = Reading(session, options, lambda _seconds, _size: None, on_batch)
    await reading.find()
    schedule = schedule_of(session, maker)
    sending = Sending(session, maker, schedule)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reading.run)
        await sending.run()
        is_sent = True
        with trio.move_on_after(ARRIVAL_SECONDS):
            if measurement.received.records < measurement.sent.records:
                await arrived.wait()
        nursery.cancel_scope.cancel()
    return schedule
