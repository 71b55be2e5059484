"""A broker with transactions, groups and logs on the forgetful disk, which crashes and starts again under its clients.

Clients outlive the broker: ``call`` waits for one that is up, and raises CrashedError where it goes before it has
answered. A life of the broker ends after some number of file operations, in the middle of whatever is done then, or in
order. All but the order in which the loop runs its tasks follows from the seed.
"""

import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from random import Random
from typing import Final, TypeVar

import trio
import trio.testing

from seglog_broker.api.broker import Broker
from seglog_broker.config import load_config
from seglog_broker.runtime.offload import Arguments, T
from seglog_broker.server import TASKS
from seglog_broker.testing.forgetful import (
    POWER_LOSS,
    PROCESS_KILL,
    RANDOM,
    CrashPolicy,
    ForgetfulFileSystem,
    Operation,
)
from seglog_protocol.errors import CorruptRecordError
from seglog_protocol.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from seglog_protocol.messages import FetchPartition, FetchRequest, FetchResult
from seglog_protocol.record_batch import iter_batches
from seglog_protocol.records import decode_records
from tests.unit.broker.coordinators.groups.service.running import SMALL_SEGMENTS, TogetherClock
from tests.unit.broker.storage.log.transactions import without_aborted
from tests.unit.simulation.interleaving import InterleavingOffload
from tests.unit.simulation.transactions.ledger import Found, Ledger, Place

OPERATIONS_MAX: Final = 600
"""File operations after which a life ends that is to end by a crash."""
LIFE_SECONDS: Final = 2.0
"""The longest life."""
MAINTENANCE_SECONDS: Final = 0.02

FLAGS: Final = (
    "log.dir=/data",
    "seglog.disk.ballast.bytes=0",
    "log.segment.bytes=2048",
    "log.index.interval.bytes=200",
    "offsets.topic.num.partitions=2",
    "transaction.state.log.num.partitions=2",
    "log.initial.task.delay.ms=0",
    "log.cleaner.backoff.ms=300",
    "log.cleaner.min.cleanable.ratio=0.01",
    "log.segment.delete.delay.ms=100",
    "log.flush.offset.checkpoint.interval.ms=1000",
    "group.initial.rebalance.delay.ms=0",
    "group.min.session.timeout.ms=1",
    "group.consumer.min.session.timeout.ms=1",
    "group.consumer.session.timeout.ms=300",
    "group.consumer.min.heartbeat.interval.ms=1",
    "group.consumer.heartbeat.interval.ms=100",
)
MARKS: Final = (0, 0), (1_000, 2_500)
"""Free bytes below which nothing is taken, and above which it is again: without a mark every write finds out."""
BACKGROUND: Final = "recovery", "checkpoints", "compaction", "deletions", "flushes", "free space"

FULL_OPERATIONS_MAX: Final = 150
"""Operations until it is full, at most."""
ROOM_BYTES_MAX: Final = 3_000
"""Bytes that a full disk still takes, at most: some writes are cut short."""
FULL_SECONDS_MAX: Final = 0.6

ResultT = TypeVar("ResultT")


class SlowOffload(InterleavingOffload):
    """One whose maintenance takes some time, too: that of snapshots, of compaction and of deletions."""

    async def maintenance(self, fn: Callable[[*Arguments], T], *args: *Arguments) -> T:
        await trio.sleep(self.dice.random() * MAINTENANCE_SECONDS)
        return fn(*args)


class FullDisk:
    """Has a file system run out of room, and gives it room again after a while, over and over."""

    def __init__(self, fs: ForgetfulFileSystem, dice: Random) -> None:
        self._fs: Final = fs
        self._dice: Final = dice
        self._left: int | None = None
        self._is_full = trio.Event()

    def note(self, _: Operation) -> None:
        """An operation begins."""
        if self._left is None:
            return
        self._left -= 1
        if self._left < 0 and not self._is_full.is_set():
            self._fs.limit_free_bytes(self._dice.randrange(ROOM_BYTES_MAX))
            self._is_full.set()

    async def run(self) -> None:
        """Give it room again, until cancelled; there is room afterwards."""
        try:
            while True:
                self._left = self._dice.randrange(FULL_OPERATIONS_MAX)
                await self._is_full.wait()
                await trio.sleep(self._dice.random() * FULL_SECONDS_MAX)
                self._fs.limit_free_bytes(None)
                self._is_full = trio.Event()
        finally:
            self._left = None
            self._fs.limit_free_bytes(None)


class CrashedError(Exception):
    """The broker was gone before it answered."""


class Life:
    """From a start of the broker to its end."""

    def __init__(self) -> None:
        self.over = trio.Event()
        self.found: ForgetfulFileSystem | None = None
        """The disk after a crash."""
        self._calls: set[trio.CancelScope] = set()

    def end(self) -> None:
        """No call is answered any more."""
        self.over.set()
        for call in self._calls:
            call.cancel()

    @contextmanager
    def call(self) -> Iterator[None]:
        """A call that is cancelled when this life ends."""
        with trio.CancelScope() as scope:
            self._calls.add(scope)
            try:
                yield
            finally:
                self._calls.remove(scope)


class World:
    """The disk, the broker on it, and what its clients know."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.ledger = Ledger()
        self.fs = ForgetfulFileSystem(is_recorded=False, begins_syncs=self.dice.random() < 0.5)
        self.lives = 0
        """How often a broker has served."""
        self.crashes = 0
        """How often the broker was stopped in the middle of something."""
        self.copies: list[ForgetfulFileSystem] = []
        """Disks with backups."""
        self._marks: Final = self.dice.choice(MARKS)
        self._clock: TogetherClock | None = None
        self._broker: Broker | None = None
        self._up = trio.Event()
        self._life = Life()

    # --- For clients --------------------------------------------------------------------------------------------------

    async def call(self, request: Callable[[Broker], Awaitable[ResultT]]) -> ResultT:
        """The answer of the broker, of the next one if there is none now. Raises its errors, and CrashedError."""
        while self._broker is None:
            await self._up.wait()
        life, broker = self._life, self._broker
        with life.call():
            try:
                result = await request(broker)
            except Exception:
                if not life.over.is_set():
                    raise
            else:
                if not life.over.is_set():
                    return result
        await trio.lowlevel.checkpoint()
        raise CrashedError

    async def read(self, topic: str, partition: int) -> tuple[Place, list[Found]]:
        """All that is read of a partition at read_committed. Raises SeglogError, and CrashedError."""
        place = Place(topic, self.ledger.incarnations[topic], partition)
        found: list[Found] = []
        offset = 0
        while True:
            result, data = await self.call(_fetch(topic, partition, offset))
            if isinstance(result.error, CorruptRecordError):
                offset = result.error.next_offset  # a power cut left a part of what nobody waited for
                continue
            if result.error is not None:
                raise result.error
            batches = [(header, view) for header, view in iter_batches(data) if header.next_offset > offset]
            if not batches:
                return place, found
            offset = batches[-1][0].next_offset
            assert result.last_stable_offset is not None
            assert offset <= result.last_stable_offset, f"{place} is read behind its last stable offset"
            for header, view in without_aborted(batches, result.aborted or ()):
                found += [
                    Found(record.offset, (record.value or b"").decode()) for record in decode_records(header, view)
                ]

    # --- Lives --------------------------------------------------------------------------------------------------------

    async def live(self) -> None:
        """A life of the broker, and what the disk has afterwards."""
        ending = self.dice.choice((POWER_LOSS, PROCESS_KILL, RANDOM(self.dice.randrange(1 << 30)), None))
        life, fs = Life(), self.fs
        full = FullDisk(fs, Random(self.dice.randrange(1 << 30)))
        watches: list[Callable[[Operation], None]] = [full.note] if self.dice.random() < 0.5 else []
        if ending is not None:
            self.crashes += 1
            watches.append(self._crash_of(life, ending))

        def watch(operation: Operation) -> None:
            for each in watches:
                each(operation)

        fs.on_operation = watch
        async with self.served(life, closes=ending is None), trio.open_nursery() as disk:
            disk.start_soon(full.run)
            with trio.move_on_after(LIFE_SECONDS):
                await life.over.wait()
            disk.cancel_scope.cancel()
        self.fs = life.found or fs.found_after(ending or PROCESS_KILL)
        self.fs.limit_free_bytes(None)

    def _crash_of(self, life: Life, policy: CrashPolicy) -> Callable[[Operation], None]:
        """Stops the machine before any operation, or before the sync of one of some files, which is where it counts.

        The broker does not notice. What it still does is done to a disk that nobody looks at, and nobody is answered.
        """
        is_any = self.dice.random() < 0.5
        topic = self.dice.choice((TRANSACTIONS_TOPIC, OFFSETS_TOPIC, ""))
        left = self.dice.randrange(OPERATIONS_MAX if is_any else OPERATIONS_MAX // 15)
        fs = self.fs

        def stop(operation: Operation) -> None:
            nonlocal left
            if is_any or (operation.name == "fdatasync" and topic in operation.path):
                left -= 1
                if left < 0 and life.found is None:
                    life.found = fs.found_after(policy)
                    self._end(life)

        return stop

    def _end(self, life: Life) -> None:
        """Calls wait for the next broker from now on, whatever the present one still does."""
        if life is self._life and not life.over.is_set():
            self._broker = None
            self._up = trio.Event()
            life.end()

    @asynccontextmanager
    async def served(self, life: Life, *, closes: bool = True) -> AsyncIterator[Broker]:
        """A broker, whose calls belong to ``life``."""
        self._life = life
        self._clock = self._clock or TogetherClock()
        hard, soft = self._marks
        marks = f"seglog.disk.free.hard.bytes={hard}", f"seglog.disk.free.soft.bytes={soft}"
        config = dataclasses.replace(load_config(None, "", {}, (*FLAGS, *marks))[0], **SMALL_SEGMENTS)
        try:
            offload = SlowOffload(Random(self.dice.randrange(1 << 30)))
            broker = Broker.open(config, self.fs, self._clock, offload)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(broker.groups.run)
                nursery.start_soon(broker.transactions.run)
                for name in BACKGROUND:
                    nursery.start_soon(TASKS[name], broker)
                self.lives += 1
                if not life.over.is_set():
                    self._broker = broker
                    self._up.set()
                yield broker
                self._end(life)
                nursery.cancel_scope.cancel()
        finally:
            self._end(life)
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()  # calls have ended
        if closes:
            assert broker.close() == []


def _fetch(topic: str, partition: int, offset: int) -> Callable[[Broker], Awaitable[tuple[FetchResult, bytes]]]:
    request = FetchRequest([FetchPartition(topic, partition, offset)], max_wait_ms=0, isolation="read_committed")

    async def fetch(broker: Broker) -> tuple[FetchResult, bytes]:
        with await broker.fetch(request) as answer:
            data = b"".join(piece.file.pread(piece.size, piece.position) for piece in answer.slices)
            return answer.reply.partitions[0], data

    return fetch
