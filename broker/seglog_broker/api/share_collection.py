"""The records of one share fetch, while they are collected: read from logs, and acquired for a member.

A fetch reads no more of a log than it may acquire, into memory: the batches that it hands out are few, and whoever
acquires records has to know where each batch begins.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from seglog_broker.api.share_sessions import Place, ShareSession
from seglog_broker.coordinators.groups.topics import id_text
from seglog_broker.coordinators.share.in_flight import Acquired
from seglog_broker.coordinators.share.partition import SharePartition
from seglog_broker.coordinators.share.records import PartitionKey
from seglog_broker.coordinators.share.service.service import ShareService
from seglog_broker.partitions.partition import Partition
from seglog_broker.partitions.partition_table import PartitionTable
from seglog_broker.storage.directory.log_directory import LogDirectory
from seglog_broker.storage.io.pauses import TurnWantedError
from seglog_broker.storage.log.partition_log import PartitionLog
from seglog_protocol.checksum import Buffer
from seglog_protocol.errors import OffsetOutOfRangeError, SeglogError, UnknownTopicError, without_frames
from seglog_protocol.record_batch import BatchHeader, iter_batches
from seglog_protocol.transaction_files import AbortedTransaction

BYTES_MAX: Final = 1024 * 1024
"""Bytes of the records of one response; the first batch alone may have more."""

BYTES_OF_RECORD: Final = 256
"""Of a record, as far as is known before it is read."""

READ_BYTES_MIN: Final = 4096
READ_BYTES_MAX: Final = 64 * 1024
"""Bytes that are read at a time."""

LOOKS_A_TURN: Final = 100
"""Share partitions that are looked at before other tasks run."""


class Wanted(NamedTuple):
    """The limits of a share fetch, as the request has them."""

    max_wait_ms: int = 0
    min_bytes: int = 0
    max_bytes: int = BYTES_MAX
    max_records: int = 0
    batch_size: int = 0
    is_record_limit: bool = False
    """True if ``max_records`` is exact; else whole batches are acquired, the last of which may exceed it."""


class Taken(NamedTuple):
    """Records of a share partition: whole batches, and which of their records were acquired; or why there are none."""

    records: Buffer = b""
    acquired: Sequence[Acquired] = ()
    error: SeglogError | None = None


class _Read(NamedTuple):
    """Bytes of a log, and where each batch begins in them."""

    data: Buffer
    batches: list[tuple[int, int]]
    """First and last offsets."""
    positions: list[int]
    aborted: list[tuple[int, int]]
    """First and last offsets of batches of aborted transactions."""

    def of(self, acquired: Sequence[Acquired]) -> Buffer:
        """The batches that have acquired records, and those between them."""
        first, last = acquired[0].first, acquired[-1].last
        begin, end = 0, len(self.data)
        for (base, _), position in zip(self.batches, self.positions, strict=True):
            if base <= first:
                begin = position
            elif base > last:
                end = position
                break
        return self.data if end - begin == len(self.data) else self.data[begin:end]


class Sources(NamedTuple):
    """The logs and the states of share partitions, from which records are taken."""

    shares: ShareService
    table: PartitionTable
    directory: LogDirectory

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


class Collection:
    """The records of one share fetch, while they are collected."""

    def __init__(
        self,
        sources: Sources,
        session: ShareSession,
        places: Sequence[Place],
        wanted: Wanted,
        *,
        is_over: bool,
    ) -> None:
        """``is_over``: fewer bytes than wanted are taken, too."""
        self._sources = sources
        self._session = session
        self._places = places
        self._wanted = wanted
        self._is_over = is_over
        self._reads_committed = sources.shares.settings.of(session.group).reads_committed
        self._taken: dict[Place, Taken] = {}
        self._number = 0  # of places that were read
        self._looked_before = 0  # their number when other tasks had run
        self._read: list[tuple[Place, SharePartition, int, _Read]] = []
        self._bytes_left = max(0, min(wanted.max_bytes, BYTES_MAX))
        self._all: list[tuple[PartitionKey, Partition]] = []  # that were looked at
        self.watched: list[tuple[PartitionKey, Partition]] = []
        """The share partitions that have too little, and may have more later."""
        self.unready: list[tuple[SharePartition, Partition]] = []
        """Those that are to be made ready for their logs before anything is taken."""

    @property
    def keys(self) -> list[PartitionKey]:
        """The share partitions that were looked at."""
        return [key for key, _ in self._all]

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
        if not self._is_over and sum([len(read.data) for *_, read in self._read]) < self._wanted.min_bytes:
            self.watched = self._all
            return self._taken
        records_left = self._wanted.max_records
        for place, machine, offset, read in self._read:
            if records_left > 0:
                records_left -= self._acquire(place, machine, offset, read, records_left)
        return self._taken

    def _look(self, place: Place) -> None:
        """Read what a share partition has for the member."""
        sources, group = self._sources, self._session.group
        topic = sources.directory.registry.topics.with_id(id_text(place[0]))
        if topic is None:
            raise UnknownTopicError("there is no topic with this id: it was deleted", topic=id_text(place[0]))
        machine = sources.machine(group, place)
        partition = sources.table.readable(topic.name, place[1])
        known = PartitionKey(group, *place), partition
        if not sources.shares.beginning.is_ready(machine, partition):
            self.unready.append((machine, partition))
            return
        offset = machine.next_offset()
        read = None
        if offset is not None and self._bytes_left:
            try:
                read = self._read_from(partition.log, machine, offset)
            except OffsetOutOfRangeError:
                read = None  # the log was cut behind what was handed out; it grows again
        self._all.append(known)
        if read is None:
            self.watched.append(known)
        else:
            self._bytes_left = max(0, self._bytes_left - len(read.data))
            assert offset is not None
            self._read.append((place, machine, offset, read))

    def _read_from(self, log: PartitionLog, machine: SharePartition, offset: int) -> _Read | None:
        """Whole batches from ``offset`` on, until they have enough records; None at the end of the log."""
        before = log.last_stable_offset if self._reads_committed else None
        enough = max(offset, machine.end_offset) + self._wanted.max_records
        at_once = min(max(self._wanted.max_records * BYTES_OF_RECORD, READ_BYTES_MIN), READ_BYTES_MAX)
        pieces: list[Buffer] = []
        read = _Read(b"", [], [], [])
        size, following = 0, offset
        while size < self._bytes_left and following < enough:
            limit = min(at_once, self._bytes_left - size)
            found = log.read(following, limit, min_one=not self._read and not pieces, before=before)
            if found is None:
                break
            try:
                data = self._sources.directory.handles.read(found.file.path, found.size, found.position)
                aborted = [] if before is None else log.aborted_in(found)
            finally:
                found.release()
            ends_at = 0
            for header, batch in iter_batches(data):
                last = header.next_offset - 1
                if aborted and header.is_transactional and _is_aborted(header, aborted):
                    read.aborted.append((header.base_offset, last))
                read.batches.append((header.base_offset, last))
                read.positions.append(size + ends_at)
                ends_at += len(batch)
                following = header.next_offset
                if following >= enough:
                    break
            pieces.append(data if ends_at == len(data) else data[:ends_at])
            size += ends_at
        if not pieces:
            return None
        return read._replace(data=pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def _acquire(self, place: Place, machine: SharePartition, offset: int, read: _Read, records_max: int) -> int:
        """Acquire records that were read; how many."""
        wanted, runtime = self._wanted, self._sources.shares.runtime
        now = runtime.now()
        acquired = machine.acquire(
            self._session.member,
            read.batches,
            offset,
            records_max,
            wanted.batch_size,
            is_record_limit=wanted.is_record_limit,
            now=now,
        )
        for first, last in read.aborted:
            machine.archive(first, last, now)
            acquired = _without(acquired, first, last)
        runtime.carry_out(machine.key, is_urgent=False)
        if acquired:
            self._taken[place] = Taken(read.of(acquired), acquired)
        return sum([each.last - each.first + 1 for each in acquired])


def _is_aborted(header: BatchHeader, aborted: Sequence[AbortedTransaction]) -> bool:
    """True if a batch belongs to one of these transactions; their markers do not."""
    return not header.is_control and any(
        each.producer_id == header.producer_id and each.first_offset <= header.base_offset <= each.last_offset
        for each in aborted
    )


def _without(acquired: Sequence[Acquired], first: int, last: int) -> list[Acquired]:
    """Acquired records but for a range of offsets."""
    left = []
    for each in acquired:
        if each.first < first:
            left.append(each._replace(last=min(each.last, first - 1)))
        if each.last > last:
            left.append(each._replace(first=max(each.first, last + 1)))
    return left
