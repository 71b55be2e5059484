"""One partition's directory: its ends, its bytes from an offset on, and the reasons for its holes.

The end is that of the last intact batch: after the last entry of the last segment's index every batch's checksum is
verified, so that a batch that is being written, or is torn, is excluded.
"""

import json
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from seglog.directory.segment import SegmentFile
from seglog.directory.transactions import Transactions
from seglog_protocol import checkpoint_files, errors
from seglog_protocol import segment_files as names
from seglog_protocol.frame_receiver import ReusedMemory
from seglog_protocol.header_scan import LocatedBatch
from seglog_protocol.isolation import Aborted
from seglog_protocol.messages import Gap
from seglog_protocol.record_batch import HEADER_SIZE, iter_batches, parse_header, why_implausible
from seglog_protocol.records import decode_records

FoundT = TypeVar("FoundT")

LOOKS_MAX: Final = 20
"""How often the files are listed again while their names change."""

_PAUSE_SECONDS: Final = 0.005


class Ends(NamedTuple):
    """[``earliest``, ``latest``) can be read; records below ``durable`` survive power loss."""

    earliest: int
    latest: int
    durable: int


class Holes(NamedTuple):
    """Reasons for offsets without a record: known ranges, and the offset below which the log was compacted.

    ``damaged`` maps (base offset of the segment, position) to the end position of known damaged bytes.
    """

    known: list[Gap]
    compacted_before: int
    damaged: dict[tuple[int, int], int]


class _Place(NamedTuple):
    """Where to continue a read at ``offset``; offsets of this segment are below ``limit``."""

    segment: SegmentFile
    position: int
    offset: int
    limit: int


class PartitionFiles:
    """A partition in a log directory. Holds a descriptor while it is being read; one thread at a time.

    Raises UnknownPartitionError without such a directory, and a retriable StorageError when its files change faster
    than they can be read.
    """

    def __init__(self, log_directory: Path, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self._log_directory = log_directory
        self._directory = log_directory / f"{topic}-{partition}"
        self._transactions = Transactions(self._directory, self._open, self._state)
        self._place: _Place | None = None
        self._memory = ReusedMemory()
        self._tail = (-1, 0, 0)  # cached end: base offset of a segment, a position in it, and the next offset there

    # --- Facts --------------------------------------------------------------------------------------------------------

    def ends(self) -> Ends:
        """The current ends."""

        def look(segments: Mapping[int, str]) -> int:
            if not segments:
                return 0
            base = max(segments)
            with closing(self._open(base, segments)) as segment:
                return self._end_of(segment)

        segments, latest = self._look(look)
        earliest = min(self._earliest(segments), latest)
        durable = self._checkpoint(checkpoint_files.RECOVERY_POINT_CHECKPOINT)
        return Ends(earliest, latest, max(earliest, min(durable, latest)))

    def stable_end(self, ends: Ends) -> int:
        """The last stable offset of a log with these ends: below it every transaction has ended."""
        first = self._look(lambda segments: self._transactions.first_open(segments, ends.latest))[1]
        return ends.latest if first is None else max(ends.earliest, min(first, ends.latest))

    def aborted(self, offset: int) -> tuple[list[Aborted], int]:
        """The aborted transactions with batches from ``offset`` on, and the offset up to which these are all."""
        latest = self.ends().latest

        def look(segments: Mapping[int, str]) -> tuple[list[Aborted], int]:
            limit = min((base for base in segments if base > offset), default=names.OFFSET_MAX)
            return self._transactions.aborted(segments, offset, limit, latest), limit

        return self._look(look)[1]

    def _end_of(self, segment: SegmentFile) -> int:
        """The offset after its last intact batch; continues from the cached end."""
        base, position, end = self._tail
        if base == segment.base_offset and position <= segment.size:
            self._tail = self._whole_until(segment, position, end)
            if self._tail[1] > position or segment.size == position:
                return self._tail[2]
        # No intact batch after the cached or indexed position: torn, being written, or the position is stale. Start
        # from an earlier one.
        for start in (segment.floor(), 0):
            self._tail = self._whole_until(segment, start, segment.base_offset)
            if self._tail[1] > start:
                break
        return self._tail[2]

    def _whole_until(self, segment: SegmentFile, position: int, end: int) -> tuple[int, int, int]:
        for found in segment.walk(position):
            # Damage with intact batches after it is not the end; a read of it raises.
            if segment.is_intact(found):
                position, end = found.end, found.header.next_offset
        if segment.is_old_format(position):  # it would look like the end of the log
            raise errors.CorruptRecordError(
                f"from offset {end} on {self.topic}-{self.partition} has messages of before Kafka 0.11, whose format "
                f"seglog does not read (at position {position} of {segment.path}): have a Kafka read it, "
                "and produce its records into a new topic",
                topic=self.topic,
                partition=self.partition,
                start_offset=end,
            )
        return segment.base_offset, position, end

    def extents(self) -> list[tuple[int, int, int]]:
        """Of each segment in order: its first offset, the next segment's or the log's end, and its size in bytes."""

        def look(segments: Mapping[int, str]) -> list[int]:
            return [(self._directory / segments[base]).stat().st_size for base in sorted(segments)]

        latest = self.ends().latest
        segments, sizes = self._look(look)
        bases = sorted(segments)
        edges = zip(bases, [*bases[1:], latest], sizes, strict=True)
        return [(start, end, size) for start, end, size in edges if start < end]

    def holes(self) -> Holes:
        """The holes recorded by seglog or Kafka."""
        state = self._state()
        try:
            noted = state.get("damaged", ())
            known = [Gap(int(d["start_offset"]), int(d["end_offset"]), str(d["reason"])) for d in noted]
            damaged = {(int(d["segment"]), int(d["position"])): int(d["end_position"]) for d in noted}
            compacted_before = int(state.get("compacted_before", 0))
        except (KeyError, TypeError, ValueError):
            known, damaged, compacted_before = [], {}, 0
        known.sort(key=lambda gap: gap.start)
        return Holes(known, max(compacted_before, self._checkpoint(checkpoint_files.CLEANER_CHECKPOINT)), damaged)

    def _state(self) -> dict[str, Any]:
        """Content of seglog's state file; empty where it is absent, as in Kafka's directories, or invalid."""
        try:
            state = json.loads((self._directory / names.PARTITION_STATE_FILE).read_bytes())
        except (FileNotFoundError, ValueError):
            return {}
        return state if isinstance(state, dict) else {}

    def _checkpoint(self, name: str) -> int:
        """This partition's offset in a checkpoint of the log directory; 0 if it is missing or malformed."""
        try:
            return checkpoint_files.decode_offsets((self._log_directory / name).read_bytes()).get(
                (self.topic, self.partition), 0
            )
        except (FileNotFoundError, checkpoint_files.MalformedCheckpointError):
            return 0

    def _earliest(self, segments: Mapping[int, str]) -> int:
        """The first offset that can be read. A damaged checkpoint neither hides records nor restores deleted ones."""
        state = self._state()
        noted = [offset for name in ("deleted_before", "log_start") if isinstance(offset := state.get(name), int)]
        first = min(segments, default=0)  # or below, where the segments before it are missing
        first = min([first, *(gap.start for gap in self.holes().known if gap.reason == "missing" and gap.end == first)])
        known = max([first, *noted])
        claimed = self._checkpoint(checkpoint_files.LOG_START_CHECKPOINT)
        if isinstance(state.get("log_start"), int):  # which seglog writes first
            return known if claimed > known and claimed != self._first_epoch_start() else max(claimed, known)
        last = max(segments, default=0)
        if claimed <= max(known, last) or not segments:
            return max(claimed, known)
        with closing(self._open(last, segments)) as segment:
            return known if claimed > self._end_of(segment) else claimed

    def _first_epoch_start(self) -> int | None:
        """Start of the first leader epoch, which Kafka moves with the log start; None if unknown."""
        try:
            entries = checkpoint_files.decode_checkpoint(
                (self._directory / checkpoint_files.LEADER_EPOCH_CHECKPOINT).read_bytes(), 2
            )
            return int(entries[0][1]) if entries else None
        except (FileNotFoundError, checkpoint_files.MalformedCheckpointError, ValueError):
            return None

    # --- Reading ------------------------------------------------------------------------------------------------------

    def read(self, offset: int, bytes_max: int, *, verify: bool = False) -> memoryview:
        """Whole batches from the one that holds or follows ``offset``, at least one; empty at the end.

        A read that continues the last one is not verified here: the caller checks the checksums. Otherwise, and with
        ``verify``, returns one intact batch. Raises OffsetOutOfRangeError below the earliest offset, CorruptRecordError
        for damage from ``offset`` to the next intact batch.
        """
        place = self._place
        if not verify and place is not None and place.offset == offset:
            data = self._read_in(place, max(bytes_max, HEADER_SIZE))
            size, following = _whole(data, place.limit)
            if not size and len(data) >= HEADER_SIZE and why_implausible(header := parse_header(data)) is None:
                data = self._read_in(place, header.size)  # one that is larger than ``bytes_max``
                size, following = _whole(data, place.limit)
            if size and parse_header(data).base_offset == offset:
                self._place = _Place(place.segment, place.position + size, following, place.limit)
                return data[:size]
        # After the segment's end, at a hole, or before damage; checksums do not cover base offsets.
        return self._seek(offset)

    def _read_in(self, place: _Place, size: int) -> memoryview:
        size = max(0, min(size, place.segment.size - place.position))
        view = memoryview(self._memory.take(size))[:size]
        return view[: place.segment.read_into(view, place.position)]

    def _seek(self, offset: int) -> memoryview:
        """The intact batch that holds ``offset``, or follows it after a hole; empty at the end."""
        self.close()

        def look(segments: Mapping[int, str]) -> bytes:
            earliest = self._earliest(segments)
            if offset < earliest:
                raise self._out_of_range(offset, earliest)
            bases = sorted(segments)
            has_damage = False  # between ``offset`` and the current position
            for base, limit in pairwise((*bases[max(0, bisect_right(bases, offset) - 1) :], names.OFFSET_MAX)):
                segment = self._open(base, segments)
                try:
                    found, is_behind_damage = _intact_for(segment, offset, limit)
                    has_damage = has_damage or is_behind_damage
                    if found is not None and has_damage and found.header.base_offset > offset:
                        raise self._damaged(segment, found.position, offset, found.header.base_offset)
                    if found is not None:
                        data = segment.pread(found.header.size, found.position)
                        self._place = _Place(segment, found.end, found.header.next_offset, limit)
                        return data
                finally:
                    if self._place is None:
                        segment.close()
            return b""

        data = self._look(look)[1]
        if not data and offset < (latest := self.ends().latest):
            raise errors.CorruptRecordError(
                f"offsets {offset} to {latest - 1} of {self.topic}-{self.partition} cannot be read: no intact "
                "batch follows in the files",
                topic=self.topic,
                partition=self.partition,
                start_offset=offset,
                next_offset=latest,
            )
        return memoryview(data)

    def find_time(self, timestamp: int) -> int | None:
        """The offset of the first readable record with a timestamp (ms) at or after this one; None without one."""
        ends = self.ends()

        def look(segments: Mapping[int, str]) -> int | None:
            bases = sorted(segments)
            for base in bases[max(0, bisect_right(bases, ends.earliest) - 1) :]:
                with closing(self._open(base, segments)) as segment:
                    found = self._first_at(segment, timestamp, ends, is_last=base == bases[-1])
                    if found is not None:
                        return found
            return None

        return self._look(look)[1]

    def _first_at(self, segment: SegmentFile, timestamp: int, ends: Ends, *, is_last: bool) -> int | None:
        if not is_last and (largest := segment.largest_time()) is not None and largest < timestamp:
            return None  # a closed segment has an index entry for its largest timestamp
        for found in segment.walk(segment.floor(max(segment.before_time(timestamp), ends.earliest))):
            header = found.header
            if header.max_timestamp < timestamp or header.last_offset < ends.earliest:
                continue
            if header.base_offset >= ends.latest:
                return None
            if not segment.is_intact(found):
                continue  # a read of it raises
            for record in decode_records(header, segment.pread(header.size, found.position)):
                if record.timestamp >= timestamp and record.offset >= ends.earliest:
                    return record.offset
        return None

    def close(self) -> None:
        """Close the open file; later reads open it again."""
        place, self._place = self._place, None
        if place is not None:
            place.segment.close()

    # --- Names --------------------------------------------------------------------------------------------------------

    def _segments(self) -> dict[int, str]:
        """The ``.log`` of every segment by base offset, including compacted ones before their final rename."""
        try:
            found = [entry.name for entry in self._directory.iterdir()]
        except FileNotFoundError:
            raise errors.UnknownPartitionError(
                f"{self.topic}-{self.partition} has no directory in {self._log_directory}",
                topic=self.topic,
                partition=self.partition,
            ) from None
        segments: dict[int, str] = {}
        for name in sorted(found, reverse=True):  # .log.swap before .log, so that .log overrides it
            parsed = names.parse_segment_file_name(name)
            if parsed is not None and parsed[1] in {names.LOG_SUFFIX, f"{names.LOG_SUFFIX}{names.SWAP_SUFFIX}"}:
                segments[parsed[0]] = name
        return segments

    def _open(self, base: int, segments: Mapping[int, str]) -> SegmentFile:
        if (self._directory / names.segment_file_name(base, names.AWAITED_SUFFIX)).exists():
            raise errors.StorageError(
                f"the segment {base} of {self.topic}-{self.partition} is still in the backup that the directory was "
                "begun from: seglogd on it fetches it"
            )
        damaged = {position: end for (segment, position), end in self.holes().damaged.items() if segment == base}
        return SegmentFile(self._directory / segments[base], base, damaged)

    def _look(self, look: Callable[[Mapping[int, str]], FoundT]) -> tuple[dict[int, str], FoundT]:
        """The segments, and the result of ``look`` for them; repeated if their names change meanwhile.

        A listing taken during the swap of a compacted segment may miss both the old and the new one.
        """
        for number in range(LOOKS_MAX):
            time.sleep(number * _PAUSE_SECONDS)
            segments = self._segments()
            try:
                found = look(segments)
            except FileNotFoundError:
                continue
            except (errors.OffsetOutOfRangeError, errors.CorruptRecordError):
                if self._stood_still(segments):
                    raise
                continue
            if self._stood_still(segments):
                return segments, found
            self.close()
        error = errors.StorageError(f"the files in {self._directory} change faster than they can be looked at")
        error.retriable = True
        raise error

    def _stood_still(self, segments: Mapping[int, str]) -> bool:
        """Whether ``segments`` still exist and none was added between them; new ones at the end are allowed."""
        last = max(segments, default=-1)
        return segments == {base: name for base, name in self._segments().items() if base <= last}

    # --- Errors -------------------------------------------------------------------------------------------------------

    def _out_of_range(self, offset: int, earliest: int) -> errors.OffsetOutOfRangeError:
        reason = self._state().get("log_start_reason")
        return errors.OffsetOutOfRangeError(
            f"offset {offset} of {self.topic}-{self.partition} is gone: the log begins at {earliest}",
            topic=self.topic,
            partition=self.partition,
            requested=offset,
            earliest=earliest,
            latest=self.ends().latest,
            reason=reason if reason in {"truncated", "missing"} else "expired",
        )

    def _damaged(self, segment: SegmentFile, position: int, offset: int, following: int) -> errors.CorruptRecordError:
        return errors.CorruptRecordError(
            f"offsets {offset} to {following - 1} of {self.topic}-{self.partition} cannot be read: {segment.path} is "
            f"damaged before position {position}",
            topic=self.topic,
            partition=self.partition,
            path=segment.path,
            position=position,
            start_offset=offset,
            next_offset=following,
        )


def _intact_for(segment: SegmentFile, offset: int, limit: int) -> tuple[LocatedBatch | None, bool]:
    """The first intact batch of one segment that reaches ``offset``, and whether damage precedes it.

    Of two overlapping batches one has a wrong offset and counts as damage. Without such a batch the flag is whether
    there is damage anywhere after the batches below ``offset``.
    """
    candidate: LocatedBatch | None = None
    expected, follows = segment.base_offset, False
    has_damage = False
    end = segment.floor(max(segment.base_offset, offset - 1))
    for found in segment.intact(end):
        base, last = found.header.base_offset, found.header.last_offset
        is_behind_damage, end = found.position > end, found.end
        if candidate is not None:
            if base > candidate.header.last_offset:
                return candidate, has_damage
            has_damage = True
            if follows:
                continue
            candidate = None  # it does not follow the batch before, and overlaps the one after it
        has_damage = has_damage or is_behind_damage
        if last >= limit or base < expected:
            has_damage = True
        elif last < offset:
            expected, has_damage = found.header.next_offset, False
        else:
            candidate, follows = found, base == expected
    return candidate, has_damage or (candidate is None and end < segment.size)


def _whole(data: memoryview, limit: int) -> tuple[int, int]:
    """Size of the whole batches below ``limit`` at the start of ``data``, and the offset after them."""
    size = following = 0
    with suppress(errors.CorruptRecordError):  # a read of the damaged offsets raises
        for header, batch in iter_batches(data):
            if header.last_offset >= limit:
                break
            size, following = size + len(batch), header.next_offset
    return size, following
