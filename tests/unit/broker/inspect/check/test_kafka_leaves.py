"""Files as an ordinary Kafka leaves them are sound. The bytes are those that a real Kafka left."""

import pytest

from seglog_broker.inspect.findings import Code, Severity
from seglog_broker.storage.io.filesystem import read_file
from seglog_broker.testing.forgetful import ForgetfulFileSystem
from seglog_protocol.checkpoint_files import encode_offsets
from seglog_protocol.record_batch import parse_header
from seglog_protocol.segment_files import TIME_ENTRY, encode_time_entry
from tests.unit.broker.inspect.check.support import (
    DATA,
    PARTITION,
    check,
    codes,
    faults,
    findings,
    path_of,
    totals,
    written,
)
from tests.unit.broker.inspect.dump.support import create

_ALLOCATED = 4096
"""Kafka gives an index ten megabytes in advance; the rule is the same for fewer."""


def _of_kafka(fs: ForgetfulFileSystem) -> ForgetfulFileSystem:
    """Remove the files that only seglog writes."""
    for path in (f"{DATA}/seglog-topics.json", f"{DATA}/seglog-format", f"{PARTITION}/seglog-partition.json"):
        if fs.exists(path):
            fs.unlink(path)
    if fs.exists(f"{DATA}/.kafka_cleanshutdown"):
        create(fs, f"{DATA}/.kafka_cleanshutdown", b'{"version":0,"brokerEpoch":47}')
    assert faults(check(fs)) == []
    return fs


def _largest_so_far(fs: ForgetfulFileSystem, base: int) -> list[bytes]:
    """The time index entries that Kafka writes if it is stopped after each batch of a segment, without repetitions."""
    log = read_file(fs, path_of(base))
    entries: list[bytes] = []
    largest, position = -1, 0
    while position < len(log):
        header = parse_header(log, position)
        if header.max_timestamp > largest:
            largest = header.max_timestamp
            entries.append(encode_time_entry(largest, header.last_offset - base))
        position += header.size
    return entries


@pytest.mark.parametrize("interval", ["4096", "150", "0"])
def test_a_time_index_keeps_the_closing_entry_of_each_clean_stop(interval: str) -> None:
    fs = _of_kafka(written(9, config={"segment.bytes": "1024"}))
    entries = _largest_so_far(fs, 0)
    assert len(entries) > 3
    for kept in (entries, entries[1:], [entries[0], entries[-1]]):
        create(fs, path_of(0, ".timeindex"), b"".join(kept))
        assert faults(check(fs, keys={"log.index.interval.bytes": interval})) == []


def test_entries_between_those_of_the_interval_are_checked_too() -> None:
    fs = _of_kafka(written(9, config={"segment.bytes": "1024"}))
    entries = _largest_so_far(fs, 0)
    timestamp, offset = TIME_ENTRY.unpack(entries[1])
    for wrong in (
        [entries[0], encode_time_entry(timestamp, offset + 1), entries[-1]],
        [entries[0], encode_time_entry(timestamp + 1, offset), entries[-1]],
        [entries[1], entries[0], entries[-1]],
        entries[:-1],  # without the largest, by which retention goes
    ):
        create(fs, path_of(0, ".timeindex"), b"".join(wrong))
        assert codes(check(fs))[1:] == [(Severity.DERIVED, Code.INDEX_WRONG)]
        assert totals(check(fs, repair=True)).is_sound


def _killed_while_rolling() -> ForgetfulFileSystem:
    """Segment 10 is closed but not known to be on the disk; segment 20 is active."""
    fs = _of_kafka(written(23, clean=False))
    create(fs, f"{DATA}/recovery-point-offset-checkpoint", encode_offsets({("commits", 0): 10}))
    return fs


def test_a_kill_during_a_roll_leaves_indexes_trimmed_and_not() -> None:
    fs = _killed_while_rolling()
    entries = _largest_so_far(fs, 10)
    create(fs, path_of(10, ".index"), b"")
    create(fs, path_of(10, ".timeindex"), entries[-1].ljust(_ALLOCATED, b"\0"))
    told = check(fs)
    assert faults(told) == []
    assert [finding.path for finding in findings(told) if finding.code == Code.INDEX_PADDING] == [
        path_of(10, ".timeindex")
    ]


def test_padding_below_the_recovery_point_is_wrong() -> None:
    fs = _killed_while_rolling()
    create(fs, path_of(0, ".timeindex"), _largest_so_far(fs, 0)[-1].ljust(_ALLOCATED, b"\0"))
    assert [finding.path for finding in faults(check(fs))] == [path_of(0, ".timeindex")]


def test_offsets_in_no_batch_are_damage_also_where_kafka_wrote_the_topic() -> None:
    fs = _of_kafka(written(33))
    for suffix in (".log", ".index", ".timeindex"):
        fs.unlink(path_of(10, suffix))
    told = check(fs)
    [lost] = faults(told)
    assert (lost.severity, lost.code, lost.start_offset, lost.end_offset) == (
        Severity.DAMAGE,
        Code.OFFSETS_MISSING,
        10,
        20,
    )
    assert not totals(told).is_sound
    create(fs, f"{DATA}/cleaner-offset-checkpoint", encode_offsets({("commits", 0): 20}))
    assert faults(check(fs)) == [], "compaction leaves such gaps below its checkpoint"
