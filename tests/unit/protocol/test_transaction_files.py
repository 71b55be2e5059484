"""``.txnindex``, ``.snapshot`` and end markers, against bytes from Kafka's own classes (storage-format, Appendix A)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog_protocol.record_batch import parse_header
from seglog_protocol.records import decode_records
from seglog_protocol.transaction_files import (
    AbortedTransaction,
    EndMarker,
    MalformedSnapshotError,
    ProducerEntry,
    UnknownSnapshotError,
    aborted_transaction,
    decode_end_marker,
    decode_snapshot,
    encode_aborted_transaction,
    encode_snapshot,
)
from tests.support import each_case
from tests.unit.protocol.golden import COMMIT_MARKER

SNAPSHOT = bytes.fromhex(
    "0001030144840000000200000000000000010002000000010000000000000002000000030000018bcfe5680000000003000000000000006400"
    "0000000000000b000cffffffffffffffffffffffff00000000000000000001e2400000000dffffffffffffffff"
)
"""A7: producer 1 with a batch and an open transaction, producer 11 with neither."""

EMPTY_SNAPSHOT = bytes.fromhex("000148674bc700000000")

TXN_INDEX = bytes.fromhex("00000000000000000001000000000000000200000000000000030000000000000004")
"""A9."""


def test_a_snapshot_of_kafka_reads_as_it_was_written() -> None:
    assert decode_snapshot(SNAPSHOT) == [
        ProducerEntry(1, 2, 1, 2, 3, 1700000000000, 3, 100),
        ProducerEntry(11, 12, -1, -1, 0, 123456, 13, -1),
    ]
    assert decode_snapshot(EMPTY_SNAPSHOT) == []


def test_a_snapshot_is_written_as_kafka_writes_it() -> None:
    entries = [ProducerEntry(1, 2, 1, 2, 3, 1700000000000, 3, 100), ProducerEntry(11, 12, -1, -1, 0, 123456, 13, -1)]
    assert encode_snapshot(entries) == SNAPSHOT
    assert encode_snapshot([]) == EMPTY_SNAPSHOT


INT16, INT32, INT64 = (st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (16, 32, 64))


@given(st.lists(st.builds(ProducerEntry, INT64, INT16, INT32, INT64, INT32, INT64, INT32, INT64)))
def test_what_a_snapshot_is_written_from_is_read_back(entries: list[ProducerEntry]) -> None:
    assert decode_snapshot(encode_snapshot(entries)) == entries


def test_first_sequences_count_back_from_the_last_and_wrap() -> None:
    batch, none = decode_snapshot(SNAPSHOT)
    assert batch.first_sequence == 2**31 - 2  # 1 - 3, in a ring of 2**31
    assert none.first_sequence == -1


@pytest.mark.parametrize("snapshot", [SNAPSHOT, EMPTY_SNAPSHOT])
def test_a_snapshot_cut_anywhere_is_malformed(snapshot: bytes) -> None:
    for size in range(len(snapshot)):
        with pytest.raises(MalformedSnapshotError):
            decode_snapshot(snapshot[:size])


def test_zeros_that_a_power_cut_leaves_are_no_snapshot_of_another_version() -> None:
    with pytest.raises(MalformedSnapshotError) as torn:
        decode_snapshot(bytes(len(SNAPSHOT)))
    with pytest.raises(UnknownSnapshotError):
        decode_snapshot(b"\x00\x02" + SNAPSHOT[2:])
    assert type(torn.value) is MalformedSnapshotError


@given(position=st.integers(0, len(SNAPSHOT) - 1), bit=st.integers(0, 7))
def test_a_snapshot_with_any_bit_flipped_is_malformed(position: int, bit: int) -> None:
    spoilt = bytearray(SNAPSHOT)
    spoilt[position] ^= 1 << bit
    with pytest.raises(MalformedSnapshotError) as caught:
        decode_snapshot(spoilt)
    assert caught.value.position in (0, 2)


def test_an_aborted_transaction_of_kafka_reads_as_it_was_written() -> None:
    assert aborted_transaction(TXN_INDEX * 2, 1) == AbortedTransaction(0, 1, 2, 3, 4)
    assert encode_aborted_transaction(AbortedTransaction(0, 1, 2, 3, 4)) == TXN_INDEX


def test_the_marker_of_kafka_reads_as_it_was_written() -> None:
    (record,) = decode_records(parse_header(COMMIT_MARKER), COMMIT_MARKER)
    assert decode_end_marker(record.key, record.value) == EndMarker("COMMIT", 9)


@each_case(
    ("key", "value"),
    [
        (None, None),
        (b"\0\0\0\1", None),
        (b"\0\0\0", b"\0\0\0\0\0\0"),
        (b"\0\0\0\1", b"\0\0\0\0\0"),
        (b"\0\0\0\2", b"\0\0\0\0\0\0"),
    ],
)
def test_what_is_no_end_marker_is_none(key: bytes | None, value: bytes | None) -> None:
    assert decode_end_marker(key, value) is None
