"""What a consumer does between replies and records, without socket or clock.

The blocking face and the trio face stand on it.
``request`` says what to ask next, ``take`` puts an answer's batches, gaps and errors into a queue in log order, and
``next_batch`` checks and hands them out. Two positions are kept for each partition: where to fetch next, and
``position``, the offset of the next record that the program will get; after an error, a seek or a lost connection
fetching goes on from the latter.

Checked before anything is handed out: the batch's checksum, that its offsets continue what came before, and that they
lie below the end the broker names. A checksum says nothing of a batch's offset: one that does not follow from the batch
before it is believed only if the next batch follows from it, or if it is the first of an answer, where the broker has
looked at what is behind it.

What does not pass is asked for once more, with ``verify``: the broker then holds it against its checksums, and says
where to go on if it is damaged on the disk. Nothing in a batch that does not pass is believed, its length and offsets
least of all.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from seglog.dialing import backoff_seconds
from seglog.failures import copied
from seglog.gaps import ConsumerGap, GapLog
from seglog_protocol.compression import DECOMPRESSED_BATCH_BYTES_MAX
from seglog_protocol.errors import (
    CorruptRecordError,
    OffsetOutOfRangeError,
    PartitionRecoveringError,
    RemoteProtocolError,
    SeglogError,
    UnknownTopicError,
)
from seglog_protocol.holes import name_hole
from seglog_protocol.messages import FetchPartition, FetchReply, FetchRequest, FetchResult, Gap
from seglog_protocol.record_batch import (
    HEADER_SIZE,
    MAGIC_POSITION,
    BatchHeader,
    iter_batches,
    parse_header,
    verify_crc,
    why_implausible,
)
from seglog_protocol.records import Record as StoredRecord
from seglog_protocol.records import iter_records

OutOfRange = Literal["error", "earliest", "latest"]

FETCH_BYTES: Final = 16 * 1024 * 1024
PARTITION_BYTES: Final = 1024 * 1024
FOLLOW_WAIT_MS: Final = 30_000
TOPIC_IDS_VERSION: Final = 2
"""From this version of ``fetch`` on a broker takes ``topic_ids``."""
VERIFY_VERSION: Final = 3
"""From this one on ``verify``."""
PARTITION_COUNTS_VERSION: Final = 3
"""From this one on ``partition_counts``."""
DURABLE_PAUSE_SECONDS: Final = 0.05
"""How soon to look again for what is written but not yet durable; a fetch cannot wait for that."""
GO_ON: Final = "; to go on behind them, seek to "
"""How the message of damage ends, before the offset: for programs, the command line goes on by itself."""


class Record(NamedTuple):
    """One record of a topic. ``timestamp`` is epoch ms, -1 for none; ``value`` None is a tombstone."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True, eq=False)
class FetchedBatch:
    """A verified batch: its header fields and its raw bytes, the same as on the broker's disk.

    Of its records, those in [``start_offset``, ``end_offset``) were asked for; ``records`` gives just these.
    """

    topic: str
    partition: int
    header: BatchHeader
    data: memoryview
    start_offset: int
    end_offset: int
    size_limit: int = DECOMPRESSED_BATCH_BYTES_MAX

    def stored(self) -> Iterator[StoredRecord]:
        """The records that were asked for, opened within ``size_limit`` bytes; CorruptRecordError with its facts."""
        start, end = self.start_offset, self.end_offset
        try:
            for record in iter_records(self.header, self.data, size_limit=self.size_limit):
                if start <= record.offset < end:
                    yield record
        except CorruptRecordError as error:
            raise _located(error, self.topic, self.partition, self.header) from error

    def records(self) -> Iterator[Record]:
        """The records that were asked for."""
        topic, partition = self.topic, self.partition
        for record in self.stored():
            yield Record(topic, partition, *record)


@dataclass(slots=True, eq=False)
class PartitionState:
    """One partition's place. ``end`` (exclusive) is where to stop, None for never; ``until_ms`` a time to stop at.

    ``topic_id`` says of which topic its offsets are; "" where the broker does not tell.
    """

    partition: int
    position: int
    end: int | None = None
    until_ms: int | None = None
    earliest: int = 0
    latest: int = 0
    durable: int = 0
    leader_epoch: int = -1
    topic_id: str = ""
    fetch_offset: int = field(init=False)
    generation: int = 0  # rises with every seek: what was fetched before it is not for us any more
    is_paused: bool = False
    is_failing: bool = False  # an error waits in the queue: do not fetch into it
    is_doubted: bool = False  # what came from ``fetch_offset`` did not pass: the broker is to look at it
    is_stopped: bool = False  # until_ms was reached
    look_again_at: float = 0.0
    attempts: int = 0  # failed in a row, each with an error that time may cure
    failing_since: float = 0.0

    def __post_init__(self) -> None:
        self.fetch_offset = self.position

    @property
    def is_finished(self) -> bool:
        """Whether the program has everything it asked for of this partition."""
        return self.is_stopped or (self.end is not None and self.position >= self.end)

    def go_to(self, offset: int) -> None:
        """Continue at ``offset``; what was fetched so far is forgotten."""
        self.position = self.fetch_offset = offset
        self.generation += 1
        self.is_failing = self.is_stopped = self.is_doubted = False
        self.look_again_at = 0.0
        self.attempts = 0


class _Item(NamedTuple):
    """Something fetched, in log order: a batch (header and data), a gap, or an error."""

    state: PartitionState
    generation: int
    header: BatchHeader | None = None
    data: memoryview | None = None
    gap: Gap | None = None
    error: SeglogError | None = None
    is_second_look: bool = False  # at what did not pass the first time


class Fetcher:
    """The partitions of one topic being read. Not thread-safe."""

    def __init__(
        self,
        topic: str,
        states: Sequence[PartitionState],
        *,
        follow: bool = False,
        on_out_of_range: OutOfRange = "error",
        durable_only: bool = False,
        size_limit: int = DECOMPRESSED_BATCH_BYTES_MAX,
        fetch_bytes: int = FETCH_BYTES,
        partition_bytes: int = PARTITION_BYTES,
        retry_seconds: float = 120.0,
    ) -> None:
        self.topic = topic
        self.states: dict[int, PartitionState] = {state.partition: state for state in states}
        topic_id = next((state.topic_id for state in states), "")
        self._topic_ids = {topic: topic_id} if topic_id else None
        self.partition_count: int | None = None
        """How many partitions the topic has, as far as is known here; None: those that are read are the ones wanted."""
        self.added: list[int] = []
        """Partitions that the topic has by now and that are not read yet; ``read_too`` them."""
        self.gaps = GapLog()
        self.met: deque[ConsumerGap] = deque()
        """Gaps met and not yet told to the program; the face empties it."""
        self._follow = follow
        self._on_out_of_range = on_out_of_range
        self._durable_only = durable_only
        self._size_limit = size_limit
        self._fetch_bytes = fetch_bytes
        self._partition_bytes = partition_bytes
        self._retry_seconds = retry_seconds
        self.must_ask_again = False
        """Whether the fetch on its way is not the one that is needed next; the face makes it False again."""
        self._queue: deque[_Item] = deque()
        self._turn = 0  # which partition is asked first next time, so that none starves behind a limit

    # --- Partitions ---------------------------------------------------------------------------------------------------

    def _note_count(self, count: int | None) -> None:
        if count is not None and self.partition_count is not None:
            self.added = [number for number in range(count) if number not in self.states]
            if not self.added:
                self.partition_count = count

    def read_too(self, states: Sequence[PartitionState]) -> None:
        """From now on these partitions are read as well, unless they are another topic's of the same name."""
        meant = (self._topic_ids or {}).get(self.topic, "")
        if all(state.topic_id == meant or not meant for state in states):
            self.states |= {state.partition: state for state in states}
            self.partition_count = len(self.states)
        self.added = []

    # --- Asking -------------------------------------------------------------------------------------------------------

    def request(self, now: float, *, version: int = FetchRequest.version) -> FetchRequest | None:
        """What to fetch next, or None when there is nothing to ask for at this time.

        ``version`` is the newest that the broker speaks: it names the topic's id, has what is doubted verified, and is
        answered early when partitions have been added, as far as that goes.
        """
        wanted = [s for s in self.states.values() if self._is_wanted(s)]
        ready = [s for s in wanted if s.look_again_at <= now]
        if not ready:
            return None
        wait_ms = FOLLOW_WAIT_MS if self._follow else 0
        if len(ready) < len(wanted):
            again = min(state.look_again_at for state in wanted if state.look_again_at > now)
            wait_ms = min(wait_ms, max(1, int((again - now) * 1000)))
        self._turn %= len(ready)
        ordered = ready[self._turn :] + ready[: self._turn]
        self._turn += 1
        return FetchRequest(
            [
                FetchPartition(
                    self.topic,
                    s.partition,
                    offset=s.fetch_offset,
                    max_bytes=self._partition_bytes,
                    verify=True if s.is_doubted and version >= VERIFY_VERSION else None,
                )
                for s in ordered
            ],
            max_bytes=self._fetch_bytes,
            max_wait_ms=wait_ms,
            topic_ids=self._topic_ids if version >= TOPIC_IDS_VERSION else None,
            partition_counts=(
                None
                if self.partition_count is None or version < PARTITION_COUNTS_VERSION
                else {self.topic: self.partition_count}
            ),
        )

    def next_look(self) -> float | None:
        """When ``request`` will have something to ask, if only time has to pass; None: never."""
        return min((s.look_again_at for s in self.states.values() if self._is_wanted(s)), default=None)

    def _is_wanted(self, state: PartitionState) -> bool:
        if state.is_paused or state.is_failing or state.is_finished:
            return False
        return state.end is None or state.fetch_offset < state.end

    @property
    def is_finished(self) -> bool:
        """Whether nothing more will come: every partition is finished or paused and nothing fetched is left."""
        return all(state.is_finished or state.is_paused for state in self.states.values())

    # --- Answers ------------------------------------------------------------------------------------------------------

    def generations(self) -> dict[int, int]:
        """To be remembered with a request and handed in with its answer."""
        return {state.partition: state.generation for state in self.states.values()}

    def take(
        self, reply: FetchReply, payload: memoryview, request: FetchRequest, asked: Mapping[int, int], now: float
    ) -> None:
        """Queue what an answer holds. RemoteProtocolError when it does not answer ``request``."""
        if len(reply.partitions) != len(request.partitions) or sum(r.size for r in reply.partitions) != len(payload):
            raise RemoteProtocolError("the broker's answer to a fetch does not fit what was asked")
        position = 0
        for index, (result, wanted) in enumerate(zip(reply.partitions, request.partitions, strict=True)):
            data = payload[position : position + result.size]
            position += result.size
            state = self.states.get(wanted.partition)
            if state is None or result.partition != wanted.partition:
                raise RemoteProtocolError("the broker's answer to a fetch names another partition than was asked")
            if asked.get(state.partition) == state.generation:
                self._take_result(state, result, data, now, is_first=index == 0)
        if request.partition_counts is not None and reply.partition_counts is not None:
            self._note_count(reply.partition_counts.get(self.topic))

    def _take_result(
        self, state: PartitionState, result: FetchResult, data: memoryview, now: float, *, is_first: bool
    ) -> None:
        for name in ("earliest", "latest", "durable", "leader_epoch"):
            value = getattr(result, name)
            if value is not None:
                setattr(state, name, value)
        before = state.fetch_offset
        gaps = sorted(result.gaps or [], key=lambda gap: gap.start)
        compacted_before = result.compacted_before or 0
        is_held_back = False
        is_second_look = state.is_doubted
        state.is_doubted = is_second_look and not data  # still to be looked at, where limits or an error kept it back
        unsure: tuple[int, int] | None = None  # how long the queue was, and what came next, before such a batch
        try:
            for header, batch in iter_batches(data):
                try:
                    self._check_place(state, header, result.latest, is_first=state.fetch_offset == before)
                except CorruptRecordError as error:
                    if unsure is None:
                        raise
                    self._take_back(state, *unsure)  # the batch before it may be the one whose offset is wrong
                    raise CorruptRecordError(error.message, start_offset=state.fetch_offset) from error
                if self._durable_only and header.next_offset > state.durable:
                    is_held_back = True
                    break
                is_next = header.base_offset == state.fetch_offset > before
                unsure = None if is_next else (len(self._queue), state.fetch_offset)
                if header.base_offset > state.fetch_offset:
                    self._queue_hole(state, header.base_offset, gaps, compacted_before)
                self._queue.append(_Item(state, state.generation, header, batch, is_second_look=is_second_look))
                state.fetch_offset = header.next_offset
        except CorruptRecordError as error:
            if not is_second_look:
                state.is_doubted = True
                return
            at = state.fetch_offset
            following = _sound_behind(data, at, state.latest)
            self._queue_error(state, self._unreadable(state, at, following, error.message))
            return
        if unsure is not None and unsure[1] > before:
            # Nothing here tells whether its offset is right; as the first of an answer the broker looks at it.
            self._take_back(state, *unsure)
            state.attempts = 0
            return
        if not is_held_back:
            self._queue_next_gaps(state, gaps)
        if result.error is not None:
            self._failed(state, result.error, now)
            return
        state.attempts = 0
        if state.fetch_offset == before:
            if is_held_back or (self._durable_only and state.durable <= before < state.latest):
                state.look_again_at = now + DURABLE_PAUSE_SECONDS
            elif not self._follow and state.end is not None and (is_first or before >= state.latest):
                # Nothing where something should be, and no limit in the way: the rest holds no record.
                self._queue_hole(state, state.end, gaps, compacted_before)

    @staticmethod
    def _check_place(state: PartitionState, header: BatchHeader, latest: int | None, *, is_first: bool) -> None:
        """The first batch contains or follows the offset asked for, every other follows the one before it."""
        at = state.fetch_offset
        if header.last_offset < at or (header.base_offset < at and not is_first):
            reason = f"does not continue at offset {at}"
        elif latest is not None and header.next_offset > latest:
            reason = f"ends beyond the log's end {latest}"
        else:
            return
        raise CorruptRecordError(
            f"the batch of offsets {header.base_offset} to {header.last_offset} {reason}", start_offset=at
        )

    def _queue_hole(self, state: PartitionState, end: int, named: list[Gap], compacted_before: int) -> None:
        """Queue what lies between the last batch and ``end``, each piece with its reason."""
        for gap in name_hole(state.fetch_offset, end, named, compacted_before):
            self._queue_gap(state, gap)

    def _take_back(self, state: PartitionState, length: int, offset: int) -> None:
        while len(self._queue) > length:
            self._queue.pop()
        state.fetch_offset = offset

    def _queue_next_gaps(self, state: PartitionState, named: list[Gap]) -> None:
        """Queue the gaps that follow the last batch; later ones lie behind what the broker did not send."""
        for gap in named:
            if gap.start <= state.fetch_offset < gap.end:
                self._queue_gap(state, Gap(state.fetch_offset, gap.end, gap.reason))

    def _queue_gap(self, state: PartitionState, gap: Gap) -> None:
        self._queue.append(_Item(state, state.generation, gap=gap))
        state.fetch_offset = gap.end

    def _failed(self, state: PartitionState, error: SeglogError, now: float) -> None:
        """Ask again after a while, for as long as that may help; the other partitions go on meanwhile.

        A recovery comes to an end, however long it takes.
        """
        if state.attempts == 0:
            state.failing_since = now
        is_patient = isinstance(error, PartitionRecoveringError) or now < state.failing_since + self._retry_seconds
        if error.retriable and is_patient:
            state.look_again_at = now + backoff_seconds(state.attempts)
            state.attempts += 1
        else:
            self._queue_error(state, error)

    def _queue_error(self, state: PartitionState, error: SeglogError) -> None:
        state.is_failing = True
        self._queue.append(_Item(state, state.generation, error=error))

    # --- Handing out --------------------------------------------------------------------------------------------------

    def next_batch(self) -> FetchedBatch | None:
        """The next batch with a record to hand out, or None when nothing of the kind is queued.

        Stays at the head until ``position`` has reached its end, so a loop that was left can be entered again. Raises
        what keeps a partition from being read; other partitions go on, and so does this one after a seek.
        """
        index = 0
        while index < len(self._queue):
            item = self._queue[index]
            state = item.state
            if state.is_paused and item.generation == state.generation:
                index += 1
                continue
            if item.generation == state.generation and not state.is_finished:
                batch = self._open(item)
                if batch is not None:
                    return batch
            del self._queue[index]
        return None

    def _open(self, item: _Item) -> FetchedBatch | None:
        """The batch of an item, None when it is used up; a gap is told, an error raised."""
        state = item.state
        if item.error is not None:
            self._handle(state, item.error)
            return None
        if item.gap is not None:
            self._tell(state, item.gap)
            return None
        header, data = item.header, item.data
        assert header is not None
        assert data is not None
        if state.position >= header.next_offset:
            return None
        if not verify_crc(data, 0, header):
            at = state.position
            next_offset = self._sound_in_queue(item, at)
            state.go_to(at)
            if not item.is_second_look:
                state.is_doubted = self.must_ask_again = True
                return None
            raise self._unreadable(state, at, next_offset, "the batch there does not match its checksum")
        if header.is_control:  # the checksum says so, too: one flipped bit would hide a batch
            state.position = header.next_offset
            return None
        end = header.next_offset if state.end is None else min(state.end, header.next_offset)
        batch = FetchedBatch(self.topic, state.partition, header, data, state.position, end, self._size_limit)
        if state.until_ms is not None and header.max_timestamp >= state.until_ms:
            return self._stop_at_time(state, batch, state.until_ms)
        if batch.start_offset >= end or header.record_count == 0:
            self.finish(batch)
            return None
        return batch

    def _unreadable(self, state: PartitionState, start: int, end: int, reason: str) -> CorruptRecordError:
        """Of offsets ``start`` to ``end`` (exclusive), which is where to go on."""
        return CorruptRecordError(
            f"offsets {start} to {end - 1} of {self.topic}-{state.partition} cannot be read: {reason}{GO_ON}{end}",
            topic=self.topic,
            partition=state.partition,
            start_offset=start,
            next_offset=end,
        )

    def _sound_in_queue(self, damaged: _Item, at: int) -> int:
        """Where to go on behind a damaged batch: at the next sound one that came with it, else as ``_cautious``."""
        for item in self._queue:
            if item.state is damaged.state and item.generation == damaged.generation and item is not damaged:
                header, data = item.header, item.data
                if header is not None and data is not None and header.base_offset > at and verify_crc(data, 0, header):
                    return header.base_offset
        assert damaged.header is not None
        return _cautious(damaged.header, at)

    def _stop_at_time(self, state: PartitionState, batch: FetchedBatch, until_ms: int) -> FetchedBatch | None:
        stop = next((record.offset for record in batch.stored() if record.timestamp >= until_ms), None)
        if stop is None:
            return batch
        if state.end is None or stop < state.end:
            state.end = stop
        if batch.start_offset >= stop:
            state.is_stopped = True
            return None
        return FetchedBatch(
            batch.topic, batch.partition, batch.header, batch.data, batch.start_offset, stop, batch.size_limit
        )

    def finish(self, batch: FetchedBatch) -> None:
        """All records of a batch have been handed out: what its offsets promise beyond them is compacted."""
        state = self.states[batch.partition]
        if state.position < batch.end_offset:
            if batch.header.record_count <= batch.header.last_offset_delta:
                self._tell(state, Gap(state.position, batch.end_offset, "compacted"))
            state.position = batch.end_offset

    def skipped(self, state: PartitionState, offset: int) -> None:
        """Inside a batch the next record is at ``offset``, not at ``position``: compaction took those between."""
        self._tell(state, Gap(state.position, offset, "compacted"))

    def _tell(self, state: PartitionState, gap: Gap) -> None:
        start = max(gap.start, state.position)
        end = gap.end if state.end is None else min(gap.end, state.end)
        if end > start:
            told = ConsumerGap(self.topic, state.partition, start, end, gap.reason)
            self.gaps.add(told)
            self.met.append(told)
            state.position = end

    def _handle(self, state: PartitionState, error: SeglogError) -> None:
        """Follow ``on_out_of_range``, or raise; either way this partition can be fetched again."""
        at = state.position
        state.go_to(at)
        if isinstance(error, OffsetOutOfRangeError) and self._on_out_of_range != "error":
            target = error.earliest if self._on_out_of_range == "earliest" else error.latest
            if error.earliest > at:
                reason = error.reason if error.reason in {"truncated", "missing"} else "expired"
                self._tell(state, Gap(at, min(error.earliest, target), reason))
            state.go_to(target)
            if state.end is not None and not self._follow:
                state.end = min(state.end, error.latest)
            return
        if isinstance(error, CorruptRecordError):
            raise _located(error, self.topic, state.partition, None, at)
        if isinstance(error, UnknownTopicError):
            raise UnknownTopicError(
                f"topic {self.topic} was deleted while it was read; one that is made later under its name is another "
                "topic, to be read by a new consumer",
                topic=self.topic,
            ) from error
        raise error


def _sound_behind(data: memoryview, at: int, latest: int) -> int:
    """The base offset of the first sound batch in ``data`` above ``at`` and below ``latest``, else ``at`` + 1."""
    whole = bytes(data)
    position = whole.find(b"\x02", MAGIC_POSITION)
    while 0 <= position <= len(whole) - HEADER_SIZE + MAGIC_POSITION:
        header = parse_header(whole, position - MAGIC_POSITION)
        is_likely = at < header.base_offset < max(latest, at + 2) and why_implausible(header) is None
        if is_likely and verify_crc(whole, position - MAGIC_POSITION, header):
            return header.base_offset
        position = whole.find(b"\x02", position + 1)
    return at + 1


def _cautious(header: BatchHeader, at: int) -> int:
    """Where to go on behind a damaged batch when nothing sound is known behind it.

    Its header counts twice how many offsets it has; the smaller number passes over nothing that is sound, but where
    both are wrong.
    """
    count = min(header.record_count, header.last_offset_delta + 1)
    return max(at + 1, header.base_offset + count if header.base_offset <= at else 0)


def _located(
    error: CorruptRecordError, topic: str, partition: int, header: BatchHeader | None, start_offset: int = -1
) -> CorruptRecordError:
    """The same error with every fact that is known here."""
    facts = {"topic": topic, "partition": partition, "start_offset": start_offset}
    if header is not None:
        facts |= {"start_offset": header.base_offset, "next_offset": header.next_offset}
    known = {name: value for name, value in error.facts.items() if value not in (-1, "", None)}
    return copied(error, facts | known)
