"""The records of one share fetch, while they are collected: read from logs into memory, and acquired for a member."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from seglog_broker.api.share_reads import Read, ShareReads
from seglog_broker.api.share_sessions import Place, ShareSession
from seglog_broker.coordinators.decisions import Decisions, Waiting
from seglog_broker.coordinators.groups.topics import id_text
from seglog_broker.coordinators.share.in_flight import Acknowledgement, Acquired
from seglog_broker.coordinators.share.partition import RUN_BYTES, SharePartition
from seglog_broker.coordinators.share.records import PartitionKey
from seglog_broker.coordinators.share.service.service import ShareService
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.io.pauses import TurnWantedError
from seglog_protocol.checksum import Buffer
from seglog_protocol.errors import (
    CoordinatorNotAvailableError,
    OffsetOutOfRangeError,
    SeglogError,
    SegmentAwaitedError,
    UnknownTopicError,
    without_frames,
)
from seglog_protocol.kafka import messages

BYTES_MAX: Final = 1024 * 1024
"""Bytes of the records of one response; the first batch alone may have more."""

LOOKS_A_TURN: Final = 100
"""Share partitions that are looked at before other tasks run."""


RECORD_LIMIT: Final = 1
"""The mode of a fetch whose ``max_records`` is exact; else whole batches are acquired."""


class Taken(NamedTuple):
    """Records of a share partition: whole batches, and which of their records were acquired; or why there are none."""

    records: Buffer = b""
    acquired: Sequence[Acquired] = ()
    error: SeglogError | None = None


NOTHING: Final = Taken()


State = tuple[int, int, int, int]


def state_of(machine: SharePartition, partition: Partition) -> State:
    """The ends of its log, segments still to come, a count of wakes: other ones when a request may find something."""
    log = partition.log
    return log.log_end_offset, log.last_stable_offset, len(log.segments.awaited), machine.wakes


class Seen(NamedTuple):
    """A share partition as a request saw it, at which it found too little."""

    machine: SharePartition
    partition: Partition
    state: State


class Sources:
    """The logs and the states of share partitions, from which records are taken."""

    def __init__(self, shares: ShareService, table: PartitionTable, directory: LogDirectory, reads: ShareReads) -> None:
        self.shares = shares
        self.table = table
        self.directory = directory
        self.reads = reads
        self.settings = shares.settings
        self.memory = shares.memory
        self.runtime: Decisions[SharePartition] = shares.runtime

    def machine(self, group: str, place: Place) -> SharePartition:
        """The state of a share partition. Raises UnknownTopicError where the group has none, and as ``find``."""
        machine = self.shares.find(PartitionKey(group, *place))
        if machine is None:
            topic = self.directory.registry.topics.with_id(id_text(place[0]))
            name = id_text(place[0]) if topic is None else topic.name
            raise UnknownTopicError(
                f"group {group} has no share partition {name}-{place[1]}: subscribe to the topic first", topic=name
            )
        return machine

    def acknowledge(self, group: str, member: str, place: Place, acks: Sequence[Acknowledgement]) -> Waiting[None]:
        """Acknowledge records of a member, all or none. Wait for what is returned until that is durable.

        Raises UnknownTopicError, and as ``ShareService.find`` and ``SharePartition.acknowledge``.
        """
        machine = self.machine(group, place)
        machine.acknowledge(member, acks, self.runtime.now())
        return self.runtime.begin_write(machine.key)


class Collection:
    """The records of one share fetch, while they are collected."""

    def __init__(
        self,
        sources: Sources,
        session: ShareSession,
        places: Sequence[Place],
        wanted: messages.ShareFetchRequest,
        *,
        is_over: bool,
    ) -> None:
        """``is_over``: fewer bytes than wanted are taken, too."""
        self._sources = sources
        self._session = session
        self._places = places
        self._wanted = wanted
        self._is_over = is_over
        self._reads_committed = sources.settings.of(session.group).reads_committed
        self._taken: dict[Place, Taken] = {}
        self._number = 0  # of places that were read
        self._looked_before = 0  # their number when other tasks had run
        self._read: list[tuple[Place, SharePartition, Read]] = []
        self._bytes_left = max(0, min(wanted.max_bytes, BYTES_MAX))
        self.seen: list[Seen] = []
        """The share partitions that were looked at."""
        self.watched: list[Seen] = []
        """Those of them that have too little, and may have more later."""
        self.unready: list[tuple[SharePartition, Partition]] = []
        """Those that are to be made ready for their logs before anything is taken."""
        self.has_passed = False
        """True if nothing was acquired of something but records of aborted transactions: there may be more."""

    def go_on(self) -> dict[Place, Taken]:
        """Read and acquire. Raises what makes a look-up pause: called again, it goes on there."""
        if not self._wanted.max_records or not self._wanted.max_bytes:
            return {}
        while self._number < len(self._places):
            if self._number - self._looked_before >= LOOKS_A_TURN:
                self._looked_before = self._number
                raise TurnWantedError
            place = self._places[self._number]
            try:
                self._look(place)
            except SeglogError as error:
                self._taken[place] = Taken(error=without_frames(error))
            self._number += 1
        if self.unready:
            return {}
        if not self._is_over and sum([read.size for *_, read in self._read]) < self._wanted.min_bytes:
            self.watched = self.seen
            return self._taken
        records_left = self._wanted.max_records
        for place, machine, read in self._read:
            if records_left > 0:
                records_left -= self._acquire(place, machine, read, records_left)
        return self._taken

    def _look(self, place: Place) -> None:
        """Read what a share partition has for the member."""
        sources, group = self._sources, self._session.group
        topic = sources.directory.registry.topics.with_id(id_text(place[0]))
        if topic is None:
            raise UnknownTopicError("there is no topic with this id: it was deleted", topic=id_text(place[0]))
        machine = sources.machine(group, place)
        partition = sources.table.readable(topic.name, place[1])
        if not sources.shares.beginning.is_ready(machine, partition):
            self.unready.append((machine, partition))
            return
        seen = Seen(machine, partition, state_of(machine, partition))
        offset = machine.next_offset()
        read = None
        if offset is not None and self._bytes_left:
            try:
                read = sources.reads.read(
                    machine.key,
                    partition.log,
                    offset,
                    max(offset, machine.end_offset) + self._wanted.max_records,
                    self._bytes_left,
                    min_one=not self._read,
                    committed=self._reads_committed,
                )
            except OffsetOutOfRangeError:
                pass  # the log was cut behind what was handed out; it grows again
            except SegmentAwaitedError as error:
                sources.table.awaited.ask(partition, error)
                if self._is_over:
                    raise
        self.seen.append(seen)
        if read is None:
            self.watched.append(seen)
        else:
            self._bytes_left = max(0, self._bytes_left - read.size)
            self._read.append((place, machine, read))

    def _acquire(self, place: Place, machine: SharePartition, read: Read, records_max: int) -> int:
        """Acquire records that were read; how many."""
        wanted, sources = self._wanted, self._sources
        now = sources.runtime.now()
        batches, end = read.batches, machine.end_offset
        try:
            sources.memory.check(machine.key, RUN_BYTES * 2, is_new=False)
        except CoordinatorNotAvailableError as error:
            batches = [(first, min(last, end - 1)) for first, last in batches if first < end]  # those in flight already
            if not batches:
                self._taken[place] = Taken(error=without_frames(error))
                return 0
        acquired = machine.acquire(
            self._session.member,
            batches,
            read.offset,
            records_max,
            wanted.batch_size,
            is_record_limit=wanted.share_acquire_mode == RECORD_LIMIT,
            now=now,
        )
        for first, last in read.hidden:
            machine.archive(first, last)
            acquired = _without(acquired, first, last)
        sources.runtime.carry_out(machine.key, is_urgent=False)
        if acquired:
            self._taken[place] = Taken(read.of(acquired), acquired)
        elif read.hidden:
            self.has_passed = True
        return sum([each.last - each.first + 1 for each in acquired])


def _without(acquired: Sequence[Acquired], first: int, last: int) -> list[Acquired]:
    """Acquired records but for a range of offsets."""
    left = []
    for each in acquired:
        if each.first < first:
            left.append(each._replace(last=min(each.last, first - 1)))
        if each.last > last:
            left.append(each._replace(first=max(each.first, last + 1)))
    return left
