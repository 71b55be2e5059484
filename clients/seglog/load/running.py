"""A run from its first connection to its report: its topic, how it sends and fetches, and each latency."""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Final

import trio

from seglog.core.consumer_options import ConsumerOptions
from seglog.core.errors import count_of
from seglog.core.fetcher import Fetcher, PartitionPosition
from seglog.core.records import FetchedBatch
from seglog.core.retries import backoff_seconds
from seglog.load.measurement import Measurement
from seglog.load.plan import CATCH_UP_SECONDS, Batches, Ended, Loop, Plan, Ticket
from seglog.load.report import Report
from seglog.raw import RawBatch
from seglog.trio import Client, raw
from seglog_protocol import errors
from seglog_protocol.messages import FetchReply, TopicDescription

ARRIVAL_SECONDS: Final = 5.0
"""How long after the last acknowledgement a round trip's records may take to arrive."""
INTERRUPT_WAIT_SECONDS: Final = 1.0
"""How long to wait, after an interrupt, for requests in flight."""
REMOVAL_SECONDS: Final = 5.0

ARRIVALS_MAX: Final = 100_000
"""Batches that have arrived, of this run or of others, whose acknowledgement is still to come."""

_LATE_SECONDS: Final = CATCH_UP_SECONDS + 0.5  # how much later than planned the loop may end
_ANSWER_SECONDS: Final = ARRIVAL_SECONDS + 2.0


async def run(plan: Plan, connect: Callable[[], Client]) -> Report:
    """Run a plan. Errors during the run are counted; an interrupted run still returns its report.

    A topic created by the run is deleted at the end, unless the plan keeps it. Raises KeyboardInterrupt when it was
    interrupted before anything was measured, and SeglogError when it cannot begin.
    """
    load = Load(plan)
    failure: errors.SeglogError | None = None
    report: Report | None = None
    async with trio.open_nursery() as nursery:
        await nursery.start(load.watch)
        with load.scope:
            try:
                report = await load.run(connect)
            except errors.SeglogError as error:
                failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if report is None:
        raise KeyboardInterrupt
    return report


class Load:
    """A run: its clients and topic, what it measures, and why it ends."""

    topic: TopicDescription

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.clients: list[Client] = []
        self.measurement = Measurement(clock=trio.current_time)
        self.scope = trio.CancelScope()
        """Encloses the whole run."""
        self.ended_by: Ended | None = None
        self._loop: Loop | None = None
        self._notes: list[str] = []
        self._answers = trio.CancelScope()  # encloses what is measured
        self._is_measuring = False
        self._ended = trio.Event()
        self._turn = trio.Lock()  # one task waits for the next ticket's time, so that batches are sent in order
        self._due: dict[tuple[int, int], tuple[float, int]] = {}  # of a round trip, by partition and first offset
        self._arrived: dict[tuple[int, int], float] = {}  # likewise, of batches that are not acknowledged yet

    async def run(self, connect: Callable[[], Client]) -> Report | None:
        """Connect, and run to the report."""
        plan = self.plan
        async with AsyncExitStack() as stack:
            self.clients = [await stack.enter_async_context(connect()) for _ in range(plan.connections)]
            name = plan.topic or f"load-{os.urandom(4).hex()}"
            is_ours = await self._find_topic(name)
            try:
                if plan.verb == "consume" and plan.topic is None:
                    await self._fill()
                return await self._measured()
            finally:
                if is_ours and not plan.keep:
                    await self._remove(name)
        return None

    # --- The topic ----------------------------------------------------------------------------------------------------

    async def _find_topic(self, name: str) -> bool:
        """Look at the topic; True if this run created it. A topic named for ``consume`` must exist."""
        plan, client = self.plan, self.clients[0]
        is_ours = False
        try:
            self.topic = await client.describe_topic(name)
        except errors.UnknownTopicError:
            if plan.verb == "consume" and plan.topic is not None:
                raise
            await client.create_topic(name, plan.partitions or 1)
            is_ours = True
            self.topic = await client.describe_topic(name)
        if plan.partitions not in {None, self.topic.partitions}:
            self._notes.append(f"{name} already existed, with another number of partitions than --partitions")
        return is_ours

    async def _remove(self, name: str) -> None:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + REMOVAL_SECONDS) as scope:
            try:
                await self.clients[0].delete_topic(name)
            except errors.SeglogError as error:
                self._notes.append(f"{name} could not be deleted: {error}")
        if scope.cancelled_caught:
            self._notes.append(f"{name} could not be deleted: no answer within {REMOVAL_SECONDS:g} s")

    async def _fill(self) -> None:
        """Write the records to read; not measured."""
        plan = replace(self.plan, verb="produce", count=self.plan.fill, duration=None, ack="os", batch_bytes=64 * 1024)
        filling = Load(plan)
        filling.clients, filling.topic = self.clients, self.topic
        await filling._produce()
        measured = filling.measurement
        if filling.ended_by == "error":
            self.measurement.errors += measured.errors
            self.end("error")
        self._notes.append(f"this run wrote what it read: {measured.sent.records:,} records of {plan.record_size:,} B")
        for code, count in measured.errors.items():
            self._notes.append(f"while writing them: {code}, {count_of(count, 'time')}")

    # --- The end ------------------------------------------------------------------------------------------------------

    def end(self, why: Ended) -> None:
        """Start no new request; the first reason counts."""
        self.ended_by = self.ended_by or why
        self._ended.set()

    def interrupt(self) -> None:
        """End cleanly while measuring; cancel at once before that, or at the second interrupt."""
        if not self._is_measuring or self.ended_by == "interrupt":
            self.scope.cancel()
        self._answers.deadline = min(self._answers.deadline, trio.current_time() + INTERRUPT_WAIT_SECONDS)
        self.ended_by = "interrupt"  # also when the run only waits for answers
        self._ended.set()

    async def watch(self, *, task_status: trio.TaskStatus[None]) -> None:
        """The task that handles Ctrl-C and SIGTERM; it ends at once outside the main thread."""
        if threading.current_thread() is not threading.main_thread():
            task_status.started()
            return
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for _ in signals:
                self.interrupt()

    async def _end_in_time(self) -> None:
        """Enforce the end of the run: after the plan's time, and a limited wait for answers."""
        plan = self.plan
        late = 0.0 if plan.verb == "consume" else _LATE_SECONDS
        with trio.move_on_after(float("inf") if plan.duration is None else plan.duration + late):
            await self._ended.wait()
        self.end("duration")
        self._answers.deadline = min(self._answers.deadline, trio.current_time() + _ANSWER_SECONDS)

    async def _failed(self, error: errors.SeglogError, attempts: int) -> bool:
        """Count an error. Returns False when it ends the run; else True, after a backoff for ``attempts``."""
        self._count(error)
        is_full = isinstance(error, errors.DiskFullError)  # nobody frees it while a load waits
        if is_full or not (error.retriable or isinstance(error, errors.ClientTimeoutError | errors.NotReachableError)):
            self.end("error")
            return False
        await trio.sleep(backoff_seconds(attempts))
        return True

    def _count(self, error: errors.SeglogError) -> None:
        """Count an error, and its time as part of the run."""
        name = type(error).__name__ if isinstance(error, errors.ClientError) else error.code
        self.measurement.errors[name] += 1
        self.measurement.touch()

    # --- The verbs ----------------------------------------------------------------------------------------------------

    async def _measured(self) -> Report:
        """Run the load to its end, and report what was measured. Raises SeglogError for one that could not begin."""
        verbs = {"produce": self._produce, "consume": self._consume, "roundtrip": self._roundtrip}
        failure: errors.SeglogError | None = None
        self._is_measuring = True
        with self._answers:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._end_in_time)
                try:
                    await verbs[self.plan.verb]()
                except errors.SeglogError as error:
                    failure = error  # before the first record
                nursery.cancel_scope.cancel()
        self.measurement.end()
        if failure is not None:
            raise failure
        topic = self.topic
        return Report(
            self.plan, topic.name, topic.partitions, self._loop, self.measurement, self.ended_by or "end", self._notes
        )

    async def _produce(self) -> None:
        """Send until the loop is over, and all requests are answered."""
        batches = Batches(self.plan, self.topic)
        self._loop = loop = Loop(self.plan, began=trio.current_time(), batch_records=batches.records_max)
        self.measurement.begin()
        async with trio.open_nursery() as nursery:
            for client in self.clients:
                for _ in range(self.plan.pipeline):
                    nursery.start_soon(self._send_all, client, batches, loop)
        if self.plan.ack == "none" and self.ended_by is None:
            for client in self.clients:
                try:
                    await client.offsets(self.topic.name)  # the broker answers it after the appends before
                except errors.SeglogError as error:
                    self._count(error)
            self.measurement.touch()
        if loop.ended_by is not None:
            self.end(loop.ended_by)

    async def _consume(self) -> None:
        """Read to the end, or with ``follow`` until the plan's bounds.

        Batches are verified and counted, not decoded. Latency is that of a fetch; with ``follow``, where fetches wait
        for records, it is from a batch's largest timestamp to its arrival, in ms and by both machines' clocks.
        """
        plan, measurement = self.plan, self.measurement

        def on_batch(batch: FetchedBatch) -> None:
            records = min(batch.header.record_count, batch.end_offset - batch.start_offset)
            measurement.received.add(records, 0, requests=0)
            if plan.follow:
                measurement.latencies.add(time.time() - batch.header.max_timestamp / 1000, records)
            measurement.touch()
            if plan.count is not None and measurement.received.records >= plan.count:
                self.end("count")

        options = ConsumerOptions(start=plan.start, follow=plan.follow, partition_bytes=plan.batch_bytes)
        positions = await self.clients[0].converse(options.begin(self.topic.name))
        measurement.begin()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read, positions, options, on_batch)
            await self._ended.wait()
            nursery.cancel_scope.cancel()  # also cancels fetches that wait for records

    async def _roundtrip(self) -> None:
        """Send and read in the same process; latency is from a batch's due time to its arrival."""
        is_sent, has_arrived = False, trio.Event()

        def on_batch(batch: FetchedBatch) -> None:
            key = batch.partition, batch.header.base_offset
            self._arrived[key] = trio.current_time()
            if len(self._arrived) > ARRIVALS_MAX:
                del self._arrived[next(iter(self._arrived))]
            self._note_arrival(key)
            if is_sent and not self._due:
                has_arrived.set()

        options = ConsumerOptions(start="latest", follow=True)
        positions = await self.clients[0].converse(options.begin(self.topic.name))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read, positions, options, on_batch)
            await self._produce()
            is_sent = True
            with trio.move_on_after(ARRIVAL_SECONDS if self._due else 0):
                await has_arrived.wait()
            nursery.cancel_scope.cancel()

    def _note_arrival(self, key: tuple[int, int]) -> None:
        """Measure a batch that has both arrived and been acknowledged."""
        if key in self._due and key in self._arrived:
            due, records = self._due.pop(key)
            self.measurement.latencies.add(self._arrived.pop(key) - due, records)
            self.measurement.received.add(records, 0)
            self.measurement.touch()

    # --- Sending ------------------------------------------------------------------------------------------------------

    async def _send_all(self, client: Client, batches: Batches, loop: Loop) -> None:
        attempts = 0
        while (ticket := await self._next(loop)) is not None:
            error = await self._send(client, batches, ticket)
            if error is None:
                attempts = 0
            elif await self._failed(error, attempts):
                attempts += 1
            else:
                return

    async def _next(self, loop: Loop) -> Ticket | None:
        async with self._turn:
            if self.ended_by is not None:
                loop.stop(self.ended_by)
            ticket = loop.take(trio.current_time())
            if ticket is not None and ticket.due > trio.current_time():
                await trio.sleep_until(ticket.due)
                ticket = ticket._replace(due=trio.current_time())  # waking late is not the broker's
            return ticket

    async def _send(self, client: Client, batches: Batches, ticket: Ticket) -> errors.SeglogError | None:
        """Send one batch; returns its error, if any."""
        measurement, partition = self.measurement, ticket.number % self.topic.partitions
        data = batches.make(ticket.records, time.time_ns() // 1_000_000)
        measurement.in_flight += 1
        try:
            batch = RawBatch(self.topic.name, partition, data)
            result = (await raw.append(client, [batch], ack=self.plan.ack))[0]
        except errors.SeglogError as error:
            result = error
        # After a cancellation it stays in flight: its result is unknown.
        measurement.in_flight -= 1
        if isinstance(result, errors.SeglogError):
            return result
        measurement.sent.add(ticket.records, len(data))
        if self.plan.verb == "produce":
            measurement.latencies.add(trio.current_time() - ticket.due, ticket.records)
        else:
            self._due[key := (partition, result.offset)] = ticket.due, ticket.records
            self._note_arrival(key)
        measurement.touch()
        return None

    # --- Fetching -----------------------------------------------------------------------------------------------------

    async def _read(
        self, positions: list[PartitionPosition], options: ConsumerOptions, on_batch: Callable[[FetchedBatch], None]
    ) -> None:
        """Read all partitions to their end, over all connections; of more connections than partitions some read again.

        A connection has as many fetches in flight as the plan's pipeline, each for other partitions.
        """
        connections = len(self.clients)
        async with trio.open_nursery() as nursery:
            for number, client in enumerate(self.clients):
                own = positions[number::connections] or [positions[number % len(positions)]]
                for first in range(min(self.plan.pipeline, len(own))):
                    part = [replace(position) for position in own[first :: self.plan.pipeline]]
                    fetcher = Fetcher(self.topic.name, part, options)
                    nursery.start_soon(self._fetch_all, client, fetcher, on_batch)
        self.end("end")

    async def _fetch_all(self, client: Client, fetcher: Fetcher, on_batch: Callable[[FetchedBatch], None]) -> None:
        attempts = 0
        while not fetcher.is_finished:
            try:
                await self._fetch(client, fetcher, on_batch)
                attempts = 0
            except errors.SeglogError as error:
                if not await self._failed(error, attempts):
                    return
                attempts += 1

    async def _fetch(self, client: Client, fetcher: Fetcher, on_batch: Callable[[FetchedBatch], None]) -> None:
        began = trio.current_time()
        request = fetcher.request(began)
        if request is None:
            again = fetcher.next_fetch_at()
            await trio.sleep_until(began if again is None else again)
            return
        asked = fetcher.generations()
        reply, payload = await client.call(request, FetchReply, is_repeatable=True)
        now = trio.current_time()
        for result in reply.partitions:
            if result.error is not None and result.error.retriable:  # the fetcher asks again by itself
                self._count(result.error)
        fetcher.take(reply, payload, request, asked, now)
        if self.plan.verb == "consume":
            self.measurement.received.add(0, len(payload))
            if not self.plan.follow:
                self.measurement.latencies.add(now - began)
        while (batch := fetcher.next_batch()) is not None:
            on_batch(batch)
            fetcher.finish(batch)
