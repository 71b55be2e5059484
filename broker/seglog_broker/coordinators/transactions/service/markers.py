"""Writes the markers of transactions that end, in rounds that share their fsyncs.

A marker that cannot be written, because the disk is full or the partition is being recovered, is tried again, first
after RETRY_SECONDS, then after twice that, and so on; others do not wait for it. A deleted partition needs none.
"""

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import trio

from seglog_broker.coordinators.groups.service.service import GroupService
from seglog_broker.coordinators.transactions.facts import Partition as Key
from seglog_broker.coordinators.transactions.machine import Ending
from seglog_broker.logger import get_logger
from seglog_broker.partitions.durability import when_durable
from seglog_broker.partitions.idle_writers import IdleWriters
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.scheduler import Service
from seglog_broker.runtime import budget
from seglog_broker.storage.producers.producer_state import TransactionEnd
from seglog_protocol import errors
from seglog_protocol.internal_topics import OFFSETS_TOPIC

RETRY_SECONDS: Final = 0.1
RETRY_SECONDS_MAX: Final = 5.0

MARKER_COST: Final = 60
"""Microseconds to write a marker."""

MARKERS_AT_ONCE: Final = 8
"""Markers that are written and synced while the loop waits, at most."""

MARKERS_A_ROUND: Final = 1_000
"""Markers after which those that are written are made durable, before more are written."""

log = get_logger()


@dataclass(slots=True, eq=False)
class _Work:
    """The partitions of a transaction that have no durable marker yet."""

    ending: Ending
    coordinator_epoch: int
    left: list[Key]
    due: float = 0.0  # the loop's time
    retry_seconds: float = RETRY_SECONDS
    why_held_up: errors.SeglogError | None = None  # as of the last round that has ended
    error: errors.SeglogError | None = None  # of the round under way


@dataclass(eq=False, repr=False)
class MarkerWriter(Service):
    """Writes the markers of endings that are added, and returns those that have all of them."""

    _idle_writers: IdleWriters
    _groups: GroupService  # commits or drops what a transaction holds when a marker stands in ``__consumer_offsets``

    def __post_init__(self) -> None:
        self._works: dict[str, _Work] = {}  # by transactional id
        self._wanted = trio.Event()
        self.rounds = trio.Lock()
        """Held while markers are written: none is written while another task holds it."""

    def add(self, ending: Ending, coordinator_epoch: int) -> None:
        """Write the markers of a transaction, with its coordinator's epoch; those of one that is under way go on."""
        known = self._works.get(ending.transactional_id)
        if known is not None and known.ending.number == ending.number:
            return
        left = [(topic, number) for topic, numbers in ending.partitions.items() for number in numbers]
        self._works[ending.transactional_id] = _Work(ending, coordinator_epoch, left)
        self._wanted.set()

    def held_up(self, transactional_id: str) -> errors.SeglogError | None:
        """Why markers of a transaction could not be written at the last try; None if they could, or are not wanted."""
        work = self._works.get(transactional_id)
        return None if work is None else work.why_held_up

    @property
    def waiting(self) -> int:
        """Markers that are still to be written, and made durable."""
        return sum([len(work.left) for work in self._works.values()])

    def all_held_up(self) -> list[tuple[Ending, int, errors.SeglogError]]:
        """The ends that could not be written at the last try: each with how many markers it lacks, and why."""
        works = self._works.values()
        return [(work.ending, len(work.left), work.why_held_up) for work in works if work.why_held_up is not None]

    async def next_due(self) -> None:
        """Return when there are markers to be written."""
        while (due := min((work.due for work in self._works.values()), default=math.inf)) > trio.current_time():
            self._wanted = trio.Event()
            with trio.move_on_at(due):
                await self._wanted.wait()

    async def write(self, end: TransactionEnd, partitions: Iterable[Key]) -> dict[Key, errors.SeglogError]:
        """Write markers that an operator asks for; the errors of those partitions that took none."""
        failed: dict[Key, errors.SeglogError] = {}
        ends: dict[Partition, int] = {}
        turns = budget.Turns(self._scheduler.turn)
        for key in partitions:
            await turns.spend(MARKER_COST)
            try:
                partition = self._table.partition(*key)
                if end.producer_id < 0 or end.producer_epoch < 0:
                    raise errors.InvalidRequestError(
                        "a marker has the id and the epoch of a producer, and neither is negative", field=""
                    )
                self._check_loaded(key)
                ends[partition] = partition.append_marker(end)
                partition.want_durable()
            except errors.SeglogError as error:
                failed[key] = errors.without_frames(error)
        written = list(ends)
        await when_durable(ends, lambda partition, error: failed.__setitem__(_key(partition), error), lambda: None)
        for partition in written:
            if partition.topic == OFFSETS_TOPIC and _key(partition) not in failed:
                await self._groups.end_transaction(partition.number, end.producer_id, is_commit=end.is_commit)
        return failed

    async def make_durable(self, partitions: Iterable[Key]) -> None:
        """Have all that partitions were sent so far made durable, but for those that are gone. Raises StorageError."""
        ends: dict[Partition, int] = {}
        for topic, number in partitions:
            partition = self._table.find(topic, number)
            if partition is not None and partition.log.durable_end_offset < partition.log.log_end_offset:
                partition.want_durable()
                ends[partition] = partition.log.log_end_offset
        failed: dict[Partition, errors.SeglogError] = {}
        await when_durable(ends, failed.__setitem__, lambda: None)
        for error in failed.values():
            if not isinstance(error, errors.UnknownTopicError):
                raise error

    async def round(self) -> list[Ending]:
        """Write some markers of each transaction that is due, and make them durable; the ends that have all of them.

        The caller holds ``rounds``.
        """
        now = trio.current_time()
        works = [work for work in self._works.values() if work.due <= now]
        ends: dict[Partition, int] = {}
        written: list[tuple[_Work, Key, Partition | None]] = []
        turns = budget.Turns(self._scheduler.turn)
        for work in works:
            work.error = None
            for key in work.left:
                if len(written) >= MARKERS_A_ROUND:
                    break
                await turns.spend(MARKER_COST)
                try:
                    partition = await self._in_service(key)
                    if not self._is_wanted(work):
                        break
                    if partition is not None:
                        ends[partition] = _write(partition, work.ending, work.coordinator_epoch)
                        partition.want_durable()
                    written.append((work, key, partition))
                except errors.SeglogError as error:
                    self._note_held_up(work, key, error)
                except Exception:  # a bug: it is tried again, as others do not wait for it
                    log.exception("transaction_marker_crashed", transactional_id=work.ending.transactional_id)
                    work.error = _internal_error()
        failed: dict[Partition, errors.SeglogError] = {}
        await when_durable(ends, failed.__setitem__, lambda: None)
        done: dict[int, set[Key]] = {}
        for work, key, partition in written:
            failure = None if partition is None else failed.get(partition)
            if failure is not None and not isinstance(failure, errors.UnknownTopicError):
                self._note_held_up(work, key, failure)
            elif partition is None or await self._tell(work, key):
                done.setdefault(id(work), set()).add(key)
        return [work.ending for work in works if self._has_all(work, done.get(id(work), set()))]

    def round_at_once(self) -> list[Ending]:
        """As ``round``, for few markers, which are synced while the loop waits: those of the broker's only client.

        Nothing is written where there are more, or where they would have to wait for anything else.
        """
        if not self._works:
            return []
        now, commits = trio.current_time(), self._table.commits
        works = [work for work in self._works.values() if work.due <= now]
        keys = [(work, key) for work in works for key in work.left]
        if not 0 < len(keys) <= MARKERS_AT_ONCE or self.rounds.locked() or not commits.may_run_at(now):
            return []
        if self._directory.handles.is_scarce or any(key[0] == OFFSETS_TOPIC for _, key in keys):
            return []
        written: list[tuple[_Work, Key, Partition, int]] = []
        for work, key in keys:
            partition = self._table.find(*key)
            if partition is not None:
                with suppress(errors.SeglogError):  # the next round meets it again, and tells it
                    written.append((work, key, partition, _write(partition, work.ending, work.coordinator_epoch)))
                    partition.want_durable()
        commits.run_now()
        done: dict[int, set[Key]] = {}
        for work, key, partition, end in written:
            if partition.log.durable_end_offset >= end:
                done.setdefault(id(work), set()).add(key)
        return [work.ending for work in works if self._has_all(work, done.get(id(work), set()))]

    async def _tell(self, work: _Work, key: Key) -> bool:
        """Tell groups of a marker among what they commit; False if that failed, and is to be done again."""
        ending = work.ending
        if key[0] == OFFSETS_TOPIC:
            try:
                await self._groups.end_transaction(key[1], ending.producer.producer_id, is_commit=ending.is_commit)
            except Exception:  # a bug, or the disk: the marker is written again, too
                log.exception("transaction_marker_crashed", transactional_id=ending.transactional_id)
                work.error = _internal_error()
                return False
        return True

    async def _in_service(self, key: Key) -> Partition | None:
        """A partition that takes a marker at once; None if it was deleted. Raises the error of one that takes none."""
        self._check_loaded(key)
        partition = self._table.find(*key)
        if partition is None:
            try:
                return self._table.partition(*key)
            except (errors.UnknownTopicError, errors.UnknownPartitionError):
                return None
        if self._directory.handles.is_scarce and not partition.log.active.log.holds_writer:
            await self._idle_writers.wait_for_room()
            if partition.is_deleted:
                return None
        return partition

    def _check_loaded(self, key: Key) -> None:
        """Groups learn of a marker as it is written: the others of a round are not to wait until they are loaded."""
        if key[0] == OFFSETS_TOPIC:
            self._groups.check_partition(key[1])

    def _note_held_up(self, work: _Work, key: Key, error: errors.SeglogError) -> None:
        if work.error is None and work.retry_seconds == RETRY_SECONDS:
            log.warning(
                "transaction_held_up",
                transactional_id=work.ending.transactional_id,
                topic=key[0],
                partition=key[1],
                reason=error.message,
            )
        work.error = error

    def _is_wanted(self, work: _Work) -> bool:
        """False if a later end of the transactional id has taken its place."""
        return self._works.get(work.ending.transactional_id) is work

    def _has_all(self, work: _Work, done: set[Key]) -> bool:
        """After a round: the transaction has all its markers, or goes on with what is left, at once or later."""
        if not self._is_wanted(work):
            return False
        work.left = [key for key in work.left if key not in done]
        work.why_held_up = work.error
        if not work.left:
            del self._works[work.ending.transactional_id]
            return True
        if work.why_held_up is not None:
            work.due = trio.current_time() + work.retry_seconds
            work.retry_seconds = min(2 * work.retry_seconds, RETRY_SECONDS_MAX)
        return False


def _internal_error() -> errors.UnknownServerError:
    return errors.UnknownServerError("an internal error; see the broker's log")


def _key(partition: Partition) -> Key:
    return partition.topic, partition.number


def _write(partition: Partition, ending: Ending, coordinator_epoch: int) -> int:
    """Write a marker; the offset behind it. One that the log refuses, because it knows better, is not needed there."""
    producer_id, epoch = ending.producer
    end = TransactionEnd(producer_id, epoch, coordinator_epoch, ending.is_commit, max(1, ending.version))
    try:
        try:
            return partition.append_marker(end)
        except errors.TransactionCoordinatorFencedError as error:
            # Of a Kafka whose directory this was. There is one coordinator, and it is this one.
            return partition.append_marker(end._replace(coordinator_epoch=error.current_epoch))
    except errors.InvalidProducerEpochError as error:
        log.warning(
            "transaction_marker_refused",
            transactional_id=ending.transactional_id,
            topic=partition.topic,
            partition=partition.number,
            reason=error.message,
        )
        return partition.log.log_end_offset
