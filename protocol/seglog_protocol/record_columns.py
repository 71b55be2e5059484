"""The records of many batches at once, as numpy arrays: the vectorised form of ``records``.

Format and checks are those of ``records``. A record's length gives the start of the next one, so finding the starts is
the only sequential part, and many batches advance in lockstep: step k finds the k-th record of every batch that has
one. Once all starts are known, each field of all records is read by a few array operations, whatever the number of
batches.

Nothing is copied: keys and values are positions in ``RecordColumns.data``.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from seglog_protocol.batch_columns import BatchColumns, Bools, Int64s
from seglog_protocol.checksum import Buffer
from seglog_protocol.compression import DECOMPRESSED_BATCH_BYTES_MAX, Codec, decompress
from seglog_protocol.errors import CorruptRecordError
from seglog_protocol.record_batch import CODEC_MASK, HEADER_SIZE, INT64_MAX, LOG_APPEND_TIME_BIT
from seglog_protocol.records import RECORD_SIZE_MIN, headers_end

UInt64s: TypeAlias = npt.NDArray[np.uint64]

OPENED_BYTES: Final = 16 * 1024 * 1024
"""Uncompressed bytes collected before they are decoded: enough for arrays to pay off, with bounded memory."""

DECODED_RECORDS: Final = 512 * 1024
"""Records found at a time, and by default decoded, unless one batch has more: about 150 bytes of memory each."""

LOCKSTEP_MIN: Final = 24
"""Number of batches from which one array step for all is cheaper than plain Python for each."""

_HEADERS_LOCKSTEP_MIN: Final = 16
_GUESS_STEPS_MIN: Final = 64  # steps guessed at a time
_GUESS_STEPS_MAX: Final = 512
_GUESS_WORTHWHILE: Final = 8
_GUESSES_IN_VAIN_MAX: Final = 3  # one after the other: lengths of records change a few times early in a batch
_GUESSED_POSITIONS_MAX: Final = 1 << 18  # at a time: about 40 bytes of memory each
_VARINT_BYTES_MAX: Final = 5
VARLONG_BYTES_MAX: Final = 10
_UINT32_MAX: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class RecordLists:
    """Positions of uncompressed record lists, with the header fields needed to decode them; one entry per list.

    ``start`` and ``end`` are byte positions in the buffer. ``has_append_time``: LogAppendTime, so every record has the
    batch's largest timestamp and its own delta is ignored.
    """

    start: Int64s
    end: Int64s
    record_count: Int64s
    last_offset_delta: Int64s
    base_timestamp: Int64s
    has_append_time: Bools

    def part(self, chosen: slice) -> "RecordLists":
        """Some of the lists."""
        fields: dict[str, Any] = {name: getattr(self, name)[chosen] for name in self.__slots__}
        return RecordLists(**fields)


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """The records of some lists, in order; arrays are int64.

    ``list_number`` is the list of each record; ``first_record`` (one entry more than there are lists) holds where the
    records of each list begin and end. Positions are byte positions in ``data``. ``key_length`` and ``value_length``
    are -1 for null; the record's headers, their count first, are between ``value_end`` and ``end``. Lists in
    ``malformed`` have no records here; ``records.decode_records`` raises the reason.
    """

    data: Buffer
    first_record: Int64s
    list_number: Int64s
    start: Int64s
    end: Int64s
    timestamp_delta: Int64s
    offset_delta: Int64s
    offset_delta_start: Int64s
    key_start: Int64s
    key_length: Int64s
    value_start: Int64s
    value_length: Int64s
    value_end: Int64s
    malformed: tuple[int, ...]

    def __len__(self) -> int:
        """Number of records."""
        return len(self.start)


@dataclass(frozen=True, slots=True)
class OpenedBatches:
    """Batches [``first``, ``last``) of a BatchColumns and their records; list k is batch ``first`` + k.

    ``errors``: why a batch could not be decompressed, by its number in the BatchColumns. Such batches, and those not
    wanted, have no records.
    """

    first: int
    last: int
    records: RecordColumns
    errors: Mapping[int, CorruptRecordError]


def open_batches(
    batches: BatchColumns,
    wanted: Bools | None = None,
    *,
    only: Int64s | None = None,
    size_limit: int = DECOMPRESSED_BATCH_BYTES_MAX,
    opened_bytes: int = OPENED_BYTES,
    records_max: int = DECODED_RECORDS,
) -> Iterator[OpenedBatches]:
    """The records of every batch, or of the ``wanted`` ones, some batches at a time.

    Batches are decompressed, each to at most ``size_limit`` bytes, and their records found once ``opened_bytes`` are
    exceeded. These are decoded and yielded up to ``records_max`` at a time, unless one batch has more. Headers must be
    plausible and checksums verified.

    ``only``: the offsets, ascending, of the records to read. Nothing is checked then: it is for batches that were
    opened before and have a record at every offset from their first to their last.
    """
    count = len(batches)
    starts, ends, record_counts = batches.position + HEADER_SIZE, batches.end.copy(), batches.record_count.copy()
    compressed = batches.attributes & CODEC_MASK != Codec.NONE
    if wanted is not None:
        ends[~wanted], record_counts[~wanted] = starts[~wanted], 0
        compressed &= wanted
    first = 0
    while first < count:
        last = first + max(1, int(np.searchsorted(np.cumsum(record_counts[first:]), DECODED_RECORDS, side="right")))
        data: Buffer = batches.data
        errors: dict[int, CorruptRecordError] = {}
        if compressed[first:last].any():
            parts: list[Buffer] = []
            size = 0
            for number in range(first, last):
                if size > opened_bytes:
                    last = number
                    break
                part = batches.data[starts[number] : ends[number]]
                if compressed[number]:
                    try:
                        part = _opened(batches, number, part, size_limit)
                    except CorruptRecordError as error:
                        errors[number], part, record_counts[number] = error, b"", 0
                starts[number], ends[number] = size, size + len(part)
                parts.append(part)
                size += len(part)
            data = b"".join(parts)
        lists = RecordLists(
            start=starts[first:last],
            end=ends[first:last],
            record_count=record_counts[first:last],
            last_offset_delta=batches.last_offset_delta[first:last],
            base_timestamp=batches.base_timestamp[first:last],
            has_append_time=batches.attributes[first:last] & LOG_APPEND_TIME_BIT != 0,
        )
        chosen = None
        if only is not None:
            bounds = (batches.base_offset[first], batches.last_offset[last - 1] + 1)
            offsets = only[slice(*np.searchsorted(only, bounds).tolist())]
            of = np.searchsorted(batches.last_offset[first:last], offsets)
            before = np.cumsum(lists.record_count) - lists.record_count
            chosen = before[of] + offsets - batches.base_offset[first:last][of]
        for which, records in decode_record_lists(data, lists, chosen, records_max):
            begin, end = first + which.start, first + which.stop
            inside = {number: error for number, error in errors.items() if begin <= number < end}
            yield OpenedBatches(begin, end, records, inside)
        first = last


def _opened(batches: BatchColumns, number: int, stored: Buffer, size_limit: int) -> bytes:
    codec = batches.header(number).codec
    if not stored and not batches.record_count[number]:
        return b""  # a compacted batch without records may keep its codec and have no stream
    return decompress(codec, stored, size_limit)


# --- Decoding ---------------------------------------------------------------------------------------------------------


def decode_record_lists(
    data: Buffer, lists: RecordLists, chosen: Int64s | None = None, records_max: int = DECODED_RECORDS
) -> Iterator[tuple[slice, RecordColumns]]:
    """The records of the uncompressed ``lists`` in ``data``, of some of these at a time, and which lists these are.

    A list is malformed exactly where ``records.iter_records`` would raise; other lists are not affected. With
    ``chosen`` (record numbers counted through all lists, ascending) only those are read, and nothing is checked.
    """
    # A record takes at least seven bytes, so the walk is bounded by the bytes, whatever the count.
    malformed = (lists.record_count < 0) | (lists.record_count * RECORD_SIZE_MIN > lists.end - lists.start)
    malformed |= (lists.record_count == 0) & (lists.end != lists.start)
    counts = np.where(malformed, 0, lists.record_count)
    first_record = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=first_record[1:])
    octets = Octets(data)
    # Starts are found in all lists together, and fields are read of so few records that their arrays stay in the
    # processor's cache, and in memory that the next ones get.
    start = _find_starts(octets, lists.start, counts, first_record)
    if chosen is not None:
        start, first_record = start[chosen], np.searchsorted(chosen, first_record)
    begin = 0
    while begin < len(counts):
        ahead = first_record[begin + 1 :] - first_record[begin]
        end = begin + max(1, int(np.searchsorted(ahead, records_max, side="right")))
        part = slice(begin, end)
        records = slice(int(first_record[begin]), int(first_record[end]))
        firsts = first_record[begin : end + 1] - records.start
        is_checked = chosen is None
        yield part, _decode(octets, lists.part(part), start[records], firsts, malformed[part], is_checked=is_checked)
        begin = end


def _decode(
    octets: "Octets", lists: RecordLists, start: Int64s, first_record: Int64s, malformed: Bools, *, is_checked: bool
) -> RecordColumns:
    bad = np.zeros(len(start), np.bool_)
    length, position = octets.varints(start, _VARINT_BYTES_MAX, bad)
    end = position + (length >> 1)
    raw, offset_delta_start = octets.varints(position + 1, VARLONG_BYTES_MAX, bad)  # after the attributes
    timestamp_delta = ((raw >> 1) & INT64_MAX) ^ -(raw & 1)
    raw, position = octets.varints(offset_delta_start, _VARINT_BYTES_MAX, bad)
    offset_delta = raw >> 1
    bad |= (length | raw) & 1 != 0  # neither may be negative
    raw, key_start = octets.varints(position, _VARINT_BYTES_MAX, bad)
    key_length, key_end = _length_and_end(raw, key_start)
    raw, value_start = octets.varints(key_end, _VARINT_BYTES_MAX, bad)
    value_length, value_end = _length_and_end(raw, value_start)
    counts = np.diff(first_record)
    if is_checked:
        _check(octets, lists, counts, first_record, (start, end, value_end, timestamp_delta, offset_delta), bad)
    of = np.repeat(np.arange(len(counts)), counts)
    if is_checked and bad.any():
        malformed[of[bad]] = True
    columns = RecordColumns(
        data=octets.data,
        first_record=first_record,
        list_number=of,
        start=start,
        end=end,
        timestamp_delta=timestamp_delta,
        offset_delta=offset_delta,
        offset_delta_start=offset_delta_start,
        key_start=key_start,
        key_length=key_length,
        value_start=value_start,
        value_length=value_length,
        value_end=value_end,
        malformed=tuple(np.flatnonzero(malformed).tolist()),
    )
    return _without_malformed(columns, malformed) if malformed.any() else columns


def _check(
    octets: "Octets",
    lists: RecordLists,
    counts: Int64s,
    first_record: Int64s,
    fields: tuple[Int64s, Int64s, Int64s, Int64s, Int64s],
    bad: Bools,
) -> None:
    """Mark records with a wrong length, a wrong end, or an offset out of order."""
    start, end, value_end, timestamp_delta, offset_delta = fields
    if not len(start):
        return
    # Every field may run past its record: positions only grow, so the comparisons with ``end`` always find it.
    has_more = octets.single.take(value_end, mode="clip") != 0
    has_more |= value_end + 1 != end
    if has_more.any():
        _check_headers(octets, np.flatnonzero(has_more), value_end, end, bad)

    # Each record ends where the next begins and has a lower offset; the last ends where its list does.
    following, rises = np.append(start[1:], 0), np.append(True, offset_delta[:-1] < offset_delta[1:])
    having = counts > 0
    is_first, is_last = first_record[:-1][having], first_record[1:][having] - 1
    following[is_last], rises[is_first] = lists.end[having], True
    bad |= end != following
    bad |= ~rises
    bad[is_last] |= offset_delta[is_last] > lists.last_offset_delta[having]
    _check_timestamps(lists, counts, timestamp_delta, bad)


def _without_malformed(columns: RecordColumns, malformed: Bools) -> RecordColumns:
    good = ~malformed[columns.list_number]
    counts = np.where(malformed, 0, np.diff(columns.first_record))
    per_record: dict[str, Int64s] = {
        name: getattr(columns, name)[good]
        for name in columns.__slots__
        if name not in {"data", "first_record", "malformed"}
    }
    return RecordColumns(
        data=columns.data, first_record=np.append(0, np.cumsum(counts)), malformed=columns.malformed, **per_record
    )


def _check_timestamps(lists: RecordLists, counts: Int64s, timestamp_delta: Int64s, bad: Bools) -> None:
    """Mark records whose timestamps do not fit int64, except under LogAppendTime."""
    far = INT64_MAX // 2
    if all(-far < int(column.min()) and int(column.max()) < far for column in (timestamp_delta, lists.base_timestamp)):
        return
    base = np.repeat(lists.base_timestamp, counts)
    timestamp = base + timestamp_delta
    overflows = ((base ^ timestamp) & (timestamp_delta ^ timestamp)) < 0
    bad |= overflows & ~np.repeat(lists.has_append_time, counts)


def _find_starts(octets: "Octets", begins: Int64s, counts: Int64s, first_record: Int64s) -> Int64s:
    """Start of each record, found by the lengths; arbitrary after the first malformed record of a list."""
    found = np.empty(int(first_record[-1]), np.int64)
    here, left, to = begins.copy(), counts.copy(), first_record[:-1].copy()
    steps, in_vain = _GUESS_STEPS_MIN, 0
    while (some := np.flatnonzero(left)).size and in_vain < _GUESSES_IN_VAIN_MAX:
        confirmed = _guess(octets, found, here, left, to, some, min(steps, 1 + _GUESSED_POSITIONS_MAX // some.size))
        in_vain = 0 if confirmed >= _GUESS_WORTHWHILE * max(some.size, LOCKSTEP_MIN) else in_vain + 1
        steps = min(2 * steps, _GUESS_STEPS_MAX)
    order = np.argsort(-left, kind="stable")  # so that lists with a k-th record come first
    falling = left[order]
    steps = int(falling[LOCKSTEP_MIN - 1]) if len(left) >= LOCKSTEP_MIN else 0
    unfinished = falling > steps
    if steps:
        widths = len(left) - np.searchsorted(falling[::-1], np.arange(steps), side="right")
        at, rows = here[order], []
        for width in widths.tolist():
            rows.append(at := at[:width])
            at = octets.advance(at)
        row_starts = np.cumsum(widths) - widths
        which = np.arange(int(widths.sum())) - np.repeat(row_starts, widths)  # which list of the order
        found[to[order][which] + np.repeat(np.arange(steps), widths)] = np.concatenate(rows)
        # A length of more than two bytes stops a list's walk: its last record seems to start there.
        walked = np.minimum(falling, steps)
        unfinished |= (walked > 0) & octets.is_long(found[np.maximum(to[order] + walked - 1, 0)])
    for number in order[unfinished].tolist():
        start, count = int(to[number]), int(left[number])
        starts = _walk(octets.data, int(here[number]), count)
        found[start : start + len(starts)] = starts
        found[start + len(starts) : start + count] = len(octets.data)  # the walk left the data: no record starts there
    return found


def _guess(octets: "Octets", found: Int64s, here: Int64s, left: Int64s, to: Int64s, some: Int64s, steps: int) -> int:
    """Find up to ``steps`` records in each of ``some`` lists; how many were found. ``here``, ``left`` and ``to`` move.

    Consecutive records often have the same length. So their starts are computed on the guess that they do; the length
    at each guessed start then confirms or refutes the next one.
    """
    at, room = here[some], np.minimum(left[some], steps)
    following = octets.advance(at)
    stride = (following - at)[:, None]
    step = np.arange(int(room.max()))
    guessed = at[:, None] + stride * np.minimum(step, room[:, None] - 1)
    behind = octets.advance(guessed.ravel()).reshape(guessed.shape)
    is_wrong = behind - guessed != stride
    is_wrong[:, -1] = True
    confirmed = np.minimum(is_wrong.argmax(axis=1) + 1, room)
    # Lengths of more than two bytes are left to the walk: nothing behind such a record is known.
    lists = np.arange(some.size)
    confirmed -= behind[lists, confirmed - 1] == guessed[lists, confirmed - 1]
    confirmed[stride[:, 0] == 0] = 0
    is_confirmed = step < confirmed[:, None]
    found[(to[some][:, None] + step)[is_confirmed]] = guessed[is_confirmed]
    here[some] = np.where(confirmed, behind[lists, confirmed - 1], at)
    to[some] += confirmed
    left[some] -= confirmed
    return int(confirmed.sum())


def _walk(data: Buffer, position: int, count: int) -> list[int]:
    """Starts of up to ``count`` records from ``position`` on."""
    starts: list[int] = []
    append = starts.append
    try:
        for _ in range(count):
            append(position)
            length = data[position]
            if length <= 0x7F:
                position += 1 + (length >> 1)
            elif (second := data[position + 1]) <= 0x7F:
                position += 2 + ((length + (second << 7) - 0x80) >> 1)
            else:
                number, shift = length & 0x7F, 7
                for byte in data[position + 1 : position + _VARINT_BYTES_MAX]:
                    number |= (byte & 0x7F) << shift
                    shift += 7
                    if byte <= 0x7F:
                        break
                position += shift // 7 + ((number & _UINT32_MAX) >> 1)
    except IndexError:
        pass
    return starts


def _length_and_end(raw: Int64s, start: Int64s) -> tuple[Int64s, Int64s]:
    """The length of a key or value (-1 for any negative one, as in Kafka) and its end."""
    length = raw >> 1
    if (raw & 1).any():
        absent = raw & 1 != 0
        end = np.where(absent, start, start + length)
        length[absent] = -1
        return length, end
    return length, start + length


# --- Numbers ----------------------------------------------------------------------------------------------------------

_ONE_BYTE_MAX: Final = 0x7F
_PAIRS: Final = np.arange(1 << 16, dtype=np.int64)  # two bytes as one little-endian number
_PAIR_IS_ONE: Final = _PAIRS & 0x80 == 0
_PAIR_IS_LONG: Final = (_PAIRS & 0x8080 == 0x8080).astype(np.bool_)
_PAIR_VALUE: Final = np.where(_PAIR_IS_ONE, _PAIRS & 0x7F, (_PAIRS & 0x7F) | (_PAIRS >> 8 & 0x7F) << 7).astype(np.int16)
_PAIR_SIZE: Final = np.where(_PAIR_IS_ONE, 1, 2).astype(np.int8)
_PAIR_ADVANCE: Final = np.where(_PAIR_IS_LONG, 0, _PAIR_SIZE + (_PAIR_VALUE >> 1)).astype(np.int16)
_PAIR_READ: Final = _PAIR_VALUE.astype(np.int64) << 3 | _PAIR_IS_LONG.astype(np.int64) << 2 | _PAIR_SIZE
"""All three in one look-up."""


class Octets:
    """The bytes of a buffer, ``single``, read as numbers of one byte or more.

    Two bytes are looked up in a table, because nearly every number in a record is that short; longer ones are read on.
    Reads beyond the data give arbitrary numbers, so callers compare every position with an end.
    """

    def __init__(self, data: Buffer) -> None:
        self.data = data
        self.single = np.frombuffer(data if len(data) else bytes(1), np.uint8)

    def _pairs(self, position: Int64s, first: npt.NDArray[np.uint8] | None = None) -> npt.NDArray[np.uint16]:
        """Two bytes each as a little-endian number; ``first`` are those at ``position``, where they are known."""
        # Gathered one by one: numpy takes half as long again for numbers that are not aligned.
        pairs = self.single.take(position + 1, mode="clip").astype(np.uint16)
        pairs <<= 8
        pairs |= self.single.take(position, mode="clip") if first is None else first
        return pairs

    def advance(self, position: Int64s) -> Int64s:
        """Starts of the records after those at ``position``; unchanged where a length has more than two bytes."""
        return position + _PAIR_ADVANCE.take(self._pairs(position))

    def is_long(self, position: Int64s) -> Bools:
        """Whether the numbers at these positions have more than two bytes."""
        found: Bools = _PAIR_IS_LONG.take(self._pairs(position))
        return found

    def varints(self, position: Int64s, bytes_max: int, bad: Bools) -> tuple[Int64s, Int64s]:
        """The numbers at these positions, still zigzag, and the positions after them; too long ones are marked bad.

        A varlong with its top bit set is negative here: the same 64 bits.
        """
        first = self.single.take(position, mode="clip")
        if position.size and first.max() <= _ONE_BYTE_MAX:  # as lengths of keys are
            return first.astype(np.int64), position + 1
        read = _PAIR_READ.take(self._pairs(position, first))
        number, after = read >> 3, position + (read & 3)
        more = np.flatnonzero(read & 4)
        shift = 14
        while more.size and shift < 7 * bytes_max:
            at = after[more]
            octet = self.single.take(at, mode="clip").astype(np.int64)
            number[more] |= (octet & 0x7F) << shift
            after[more] = at + 1
            more = more[octet > 0x7F]
            shift += 7
        if more.size:
            bad[more] = True
        if bytes_max == _VARINT_BYTES_MAX and shift >= 7 * bytes_max:
            number &= _UINT32_MAX  # the last byte may carry bits beyond the type; they are dropped, as in Java
        return number, after


# --- Headers ----------------------------------------------------------------------------------------------------------


def _check_headers(octets: Octets, which: Int64s, starts: Int64s, ends: Int64s, bad: Bools) -> None:
    """Mark records of ``which`` as bad whose headers are malformed or do not end where the record does."""
    end = ends[which]
    wrong = np.zeros(len(which), np.bool_)
    left, position = octets.varints(starts[which], _VARINT_BYTES_MAX, wrong)
    wrong |= (left & 1 != 0) | (left >> 1 > end - position)
    left >>= 1
    names: set[bytes] = set()
    active = np.flatnonzero(~wrong & (left > 0))
    while active.size >= _HEADERS_LOCKSTEP_MIN:
        unfit = np.zeros(active.size, np.bool_)
        length, name_start = octets.varints(position[active], _VARINT_BYTES_MAX, unfit)
        name_end = name_start + (length >> 1)
        unfit |= (length & 1 != 0) | (name_end > end[active])
        found = zip(name_start[~unfit].tolist(), name_end[~unfit].tolist(), strict=True)
        names.update([bytes(octets.data[start:stop]) for start, stop in found])
        length, value_start = octets.varints(name_end, _VARINT_BYTES_MAX, unfit)
        position[active] = value_start + np.where(length & 1, 0, length >> 1)
        wrong[active] |= unfit | (position[active] > end[active])
        left[active] -= 1
        active = active[~wrong[active] & (left[active] > 0)]
    if active.size or not _all_text(names):
        # Few are left, or a name is not UTF-8: the loop that reads headers one by one finds in which record.
        some = np.flatnonzero(~wrong) if not _all_text(names) else active
        for number in some.tolist():
            record = which[number]
            stop = headers_end(octets.data, int(starts[record]), int(end[number]))
            wrong[number] = stop is None
            position[number] = -1 if stop is None else stop
    bad[which[wrong | (position != end)]] = True


def _all_text(names: set[bytes]) -> bool:
    try:
        b"\0".join(names).decode()
    except UnicodeDecodeError:
        return False
    return True


# --- Encoding ---------------------------------------------------------------------------------------------------------


def zigzag(numbers: Int64s) -> UInt64s:
    """The zigzag encoding: small numbers of either sign become small unsigned numbers."""
    return ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)


def varint_sizes(numbers: UInt64s) -> Int64s:
    """The size of each number's varint in bytes."""
    sizes = np.ones(len(numbers), np.int64)
    largest = int(numbers.max()) if len(numbers) else 0
    for groups in range(1, VARLONG_BYTES_MAX):
        if largest < 1 << 7 * groups:
            break
        sizes += numbers >= np.uint64(1 << 7 * groups)
    return sizes


def put_varints(written: npt.NDArray[np.uint8], position: Int64s, numbers: UInt64s, sizes: Int64s) -> None:
    """Write each number as a varint of so many bytes at its position."""
    longest = int(sizes.max()) if len(sizes) else 0
    if longest <= 1:
        written[position] = numbers
        return
    low = (numbers & np.uint64(0x7F)).astype(np.uint8)
    written[position] = low | (sizes > 1).astype(np.uint8) << 7
    for group in range(1, longest):
        which = np.flatnonzero(sizes > group)
        low = (numbers[which] >> np.uint64(7 * group) & np.uint64(0x7F)).astype(np.uint8)
        written[position[which] + group] = low | (sizes[which] > group + 1).astype(np.uint8) << 7
