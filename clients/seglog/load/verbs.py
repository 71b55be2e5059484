"""The three verbs ``produce``, ``consume`` and ``roundtrip``: their batches, how they send and fetch, each latency.

Batches hold a few variants of random text, from a seed. They are compressed once, except those of a round trip, whose
records contain their time.
"""

import os
import random
import struct
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import trio

from seglog.core.consumer_options import ConsumerOptions
from seglog.core.fetcher import Fetcher, PartitionPosition
from seglog.core.records import FetchedBatch
from seglog.load.measurement import Session
from seglog.load.plan import STAMP_SIZE, Loop, Ticket
from seglog.raw import RawBatch
from seglog.trio import Client, raw
from seglog_protocol.batch_builder import BatchBuilder
from seglog_protocol.compression import Codec, compress
from seglog_protocol.errors import SeglogError
from seglog_protocol.messages import FetchReply
from seglog_protocol.record_batch import HEADER_SIZE, BatchHeader, parse_header, seal_batch

VARIANTS: Final = 4

_STAMP: Final = struct.Struct(">8sq")
_NO_HEADERS_SIZE: Final = 1  # bytes after a record's value


class _Template(NamedTuple):
    header: BatchHeader
    records: bytearray
    stamps: list[int]
    """The start of each record's value."""
    compressed: bytes


class BatchMaker:
    """Makes batches of up to ``records_max`` records with values of ``record_size`` bytes.

    With ``stamp_id`` (8 bytes) every value begins with it and the record's time, see ``stamp_of``. A batch has
    ``batch_records``, or as many as fit into ``batch_bytes``, whichever is less, and at least one record.
    """

    def __init__(
        self,
        *,
        record_size: int,
        batch_bytes: int,
        batch_records: int | None = None,
        codec: Codec = Codec.NONE,
        seed: int = 0,
        stamp_id: bytes | None = None,
    ) -> None:
        self.record_size = record_size
        self._batch_bytes = batch_bytes
        self._codec = codec
        self._random = random.Random(seed)  # noqa: S311 - a load, no secret
        self._stamp_id = stamp_id
        self._templates: dict[int, list[_Template]] = {}
        first = self._template(batch_records)
        self.records_max: int = first.header.record_count
        self._templates[self.records_max] = [first]

    def make(self, number: int, records: int, timestamp: int, due: float = 0.0) -> bytes:
        """Batch ``number`` with ``records`` records, all with ``timestamp`` (epoch ms), to be sent at ``due``."""
        variants = self._templates.setdefault(records, [])
        if len(variants) < VARIANTS:
            variants.append(self._template(records))
        template = variants[number % len(variants)]
        body = template.compressed
        if self._stamp_id is not None:
            stamp = _STAMP.pack(self._stamp_id, round(due * 1e9))
            for position in template.stamps:
                template.records[position : position + STAMP_SIZE] = stamp
            body = compress(self._codec, bytes(template.records))
        return seal_batch(template.header._replace(base_timestamp=timestamp, max_timestamp=timestamp), body)

    def _template(self, records: int | None) -> _Template:
        builder = BatchBuilder()
        stamps: list[int] = []
        text = b64encode(self._random.randbytes(self.record_size * (records or 1) + 3))
        while records is None or len(stamps) < records:
            start = len(stamps) * self.record_size % max(1, len(text) - self.record_size)
            if records is None:
                text, start = b64encode(self._random.randbytes(self.record_size + 1)), 0
            value = text[start : start + self.record_size]
            if not builder.try_append(0, None, value, size_max=self._batch_bytes):
                break
            stamps.append(builder.size - HEADER_SIZE - _NO_HEADERS_SIZE - self.record_size)
        plain = builder.build()
        body = plain[HEADER_SIZE:]
        header = parse_header(plain)._replace(attributes=int(self._codec))
        compressed = b"" if self._stamp_id is not None else compress(self._codec, body)
        return _Template(header, bytearray(body), stamps, compressed)


def stamp_of(value: bytes | None, stamp_id: bytes) -> int | None:
    """When a record of this run was due, in nanoseconds of the sender's clock; None for other records."""
    if value is None or len(value) < STAMP_SIZE or not value.startswith(stamp_id):
        return None
    due: int = _STAMP.unpack_from(value)[1]
    return due


ARRIVAL_SECONDS: Final = 5.0
"""How long after the last acknowledgement a round trip's records may take to arrive."""

OnAnswer = Callable[[float, int], None]
"""Called with the duration of a fetch (seconds) and the bytes of batches in its reply."""
OnBatch = Callable[[FetchedBatch], None]


async def produce(session: Session) -> Loop:
    """Send until the loop is over."""
    sending = Sending(session, batch_maker(session))
    await sending.run()
    return sending.loop


async def consume(session: Session) -> None:
    """Read to the end, or with ``follow`` until the plan's bounds.

    Batches are verified and counted, not decoded. Latency is that of a fetch; with ``follow``, where fetches wait for
    records, it is from a batch's largest timestamp to its arrival, to the millisecond and by both machines' clocks.
    """
    plan, measurement = session.plan, session.measurement

    def on_answer(seconds: float, size: int) -> None:
        measurement.received.add(0, size)
        if not plan.follow:
            measurement.latencies.add(seconds)

    def on_batch(batch: FetchedBatch) -> None:
        header = batch.header
        records = min(header.record_count, batch.end_offset - batch.start_offset)
        measurement.received.add(records, 0, requests=0)
        if plan.follow:
            measurement.latencies.add(time.time() - header.max_timestamp / 1000, records)
        measurement.touch()
        if plan.count is not None and measurement.received.records >= plan.count:
            session.control.end("count")

    async def read() -> None:
        await reading.run()
        session.control.end("end")

    options = ConsumerOptions(start=plan.start, follow=plan.follow, partition_bytes=plan.batch_bytes)
    reading = Reading(session, options, on_answer, on_batch)
    await reading.find()
    measurement.begin()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        with trio.move_on_after(float("inf") if plan.duration is None else plan.duration):
            await session.control.ended()
        session.control.end("duration")
        nursery.cancel_scope.cancel()  # also cancels fetches that wait for records


async def roundtrip(session: Session) -> Loop:
    """Send and read in the same process; latency is from a record's due time to its arrival."""
    measurement = session.measurement
    stamp_id = os.urandom(8)
    maker = batch_maker(session, stamp_id=stamp_id)
    arrived = trio.Event()
    is_sent = False

    def on_batch(batch: FetchedBatch) -> None:
        now_ns = round(trio.current_time() * 1e9)
        stamps = (stamp_of(record.value, stamp_id) for record in batch.stored())
        for due, count in Counter(due for due in stamps if due is not None).items():
            measurement.latencies.add((now_ns - due) / 1e9, count)
            measurement.received.add(count, len(batch.data))
            measurement.touch()
        if is_sent and measurement.received.records >= measurement.sent.records:
            arrived.set()

    options = ConsumerOptions(start="latest", follow=True)
    reading = Reading(session, options, lambda _seconds, _size: None, on_batch)
    await reading.find()
    sending = Sending(session, maker)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reading.run)
        await sending.run()
        is_sent = True
        with trio.move_on_after(ARRIVAL_SECONDS):
            if measurement.received.records < measurement.sent.records:
                await arrived.wait()
        nursery.cancel_scope.cancel()
    return sending.loop


# --- Sending ----------------------------------------------------------------------------------------------------------


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


class Sending:
    """The senders of a run; ``run`` returns when the loop is over and all requests are answered."""

    def __init__(self, session: Session, maker: BatchMaker) -> None:
        plan = session.plan
        self.loop = Loop(
            began=trio.current_time(),
            batch_records=maker.records_max,
            rate=plan.rate,
            duration=plan.duration,
            count=plan.count,
        )
        self._session = session
        self._maker = maker
        self._turn = trio.Lock()  # one task waits for the next ticket's time, so that batches are sent in order

    async def run(self) -> None:
        """Send all batches of the loop, over all connections."""
        session = self._session
        session.measurement.begin()
        async with trio.open_nursery() as nursery:
            for client in session.clients:
                for _ in range(session.plan.pipeline):
                    nursery.start_soon(self._send_all, client)
        if session.plan.ack == "none" and session.control.ended_by is None:
            await self._catch_up()
        if self.loop.ended_by is not None:
            session.control.end(self.loop.ended_by)

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
        async with self._turn:
            if self._session.control.ended_by is not None:
                self.loop.stop(self._session.control.ended_by)
            ticket = self.loop.take(trio.current_time())
            if ticket is not None and ticket.due > trio.current_time():
                await trio.sleep_until(ticket.due)
                ticket = ticket._replace(due=trio.current_time())  # waking late is not the broker's
            return ticket

    async def _send(self, client: Client, ticket: Ticket) -> SeglogError | None:
        """Send one batch; returns its error, if any."""
        session, measurement = self._session, self._session.measurement
        partition = ticket.number % session.topic.partitions
        data = self._maker.make(ticket.number, ticket.records, time.time_ns() // 1_000_000, ticket.due)
        batch = RawBatch(session.topic.name, partition, data)
        measurement.in_flight += 1
        try:
            result = (await raw.append(client, [batch], ack=session.plan.ack))[0]
        except SeglogError as error:
            result = error
        # After a cancellation it stays in flight: its result is unknown.
        measurement.in_flight -= 1
        if isinstance(result, SeglogError):
            return result
        if session.plan.verb == "produce":
            measurement.latencies.add(trio.current_time() - ticket.due, ticket.records)
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


# --- Fetching ---------------------------------------------------------------------------------------------------------


def deal(partitions: Sequence[int], connections: int, pipeline: int) -> list[list[list[int]]]:
    """Assignment of partitions: for each connection, the partitions of each of its readers.

    Each partition has one reader; with more connections than partitions some have several, which all read all of it.
    """
    dealt = []
    for connection in range(connections):
        own = list(partitions[connection::connections]) or [partitions[connection % len(partitions)]]
        dealt.append([own[reader::pipeline] for reader in range(min(pipeline, len(own)))])
    return dealt


class Reading:
    """The readers of a run; ``run`` returns when all are at their end."""

    def __init__(self, session: Session, options: ConsumerOptions, on_answer: OnAnswer, on_batch: OnBatch) -> None:
        self._session = session
        self._options = options
        self._on_answer = on_answer
        self._on_batch = on_batch
        self._states: dict[int, PartitionPosition] = {}

    async def find(self) -> None:
        """Look up the start and end offsets. Raises the broker's error."""
        session = self._session
        states = await session.clients[0].converse(self._options.begin(session.topic.name))
        self._states = {state.partition: state for state in states}

    async def run(self) -> None:
        """Read all partitions, over all connections."""
        session, plan = self._session, self._session.plan
        dealt = deal(sorted(self._states), plan.connections, plan.pipeline)
        async with trio.open_nursery() as nursery:
            for client, readers in zip(session.clients, dealt, strict=True):
                for partitions in readers:
                    nursery.start_soon(self._read, client, partitions)

    async def _read(self, client: Client, partitions: list[int]) -> None:
        session = self._session
        own = [replace(self._states[partition]) for partition in partitions]  # a partition may have several readers
        fetcher = Fetcher(session.topic.name, own, self._options)
        attempts = 0
        while not fetcher.is_finished:
            try:
                await self._fetch(client, fetcher)
                attempts = 0
            except SeglogError as error:
                if not await session.failed(error, attempts):
                    return
                attempts += 1

    async def _fetch(self, client: Client, fetcher: Fetcher) -> None:
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
                self._session.count(result.error)
        fetcher.take(reply, payload, request, asked, now)
        self._on_answer(now - began, len(payload))
        while (batch := fetcher.next_batch()) is not None:
            self._on_batch(batch)
            fetcher.finish(batch)
