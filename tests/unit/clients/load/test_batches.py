"""The batches of a load: what a broker takes, of the size asked for, the same for the same seed."""

import pytest

from seglog.load.verbs import BatchMaker, stamp_of
from seglog_protocol.compression import Codec
from seglog_protocol.record_batch import parse_header, verify_crc
from seglog_protocol.records import decode_records
from tests.support import each_case


@each_case("codec", list(Codec))
@each_case("stamp_id", [None, b"whose it"])
def test_every_batch_is_one_that_a_broker_takes(codec: Codec, stamp_id: bytes | None) -> None:
    maker = BatchMaker(record_size=40, batch_bytes=5000, codec=codec, stamp_id=stamp_id)
    assert maker.records_max > 50
    for number in range(6):
        data = maker.make(number, maker.records_max, 1_000 + number, due=number + 0.25)
        header = parse_header(data)
        assert verify_crc(data, 0, header)
        assert header.size == len(data) <= (5000 if codec is Codec.NONE else 6000)
        assert header.codec == codec
        records = decode_records(header, data)
        assert [record.offset for record in records] == list(range(maker.records_max))
        assert {record.timestamp for record in records} == {1_000 + number}
        assert {len(record.value or b"") for record in records} == {40}
        expected = {None if stamp_id is None else int((number + 0.25) * 1e9)}
        assert {stamp_of(record.value, stamp_id or b"whose it") for record in records} == expected


def test_a_batch_is_as_full_as_its_bytes_allow_and_holds_at_least_one_record() -> None:
    maker = BatchMaker(record_size=100, batch_bytes=10_000)
    assert 9_880 < len(maker.make(0, maker.records_max, 0)) <= 10_000
    assert BatchMaker(record_size=100, batch_bytes=10).records_max == 1


@pytest.mark.parametrize("records", [1, 2, 333])
def test_records_are_counted_where_that_is_asked_for(records: int) -> None:
    maker = BatchMaker(record_size=16, batch_bytes=20_000, batch_records=records)
    assert maker.records_max == records
    assert parse_header(maker.make(0, records, 0)).record_count == records
    assert parse_header(maker.make(1, 1, 0)).record_count == 1


def test_no_more_records_are_in_a_batch_than_its_bytes_allow() -> None:
    maker = BatchMaker(record_size=16, batch_bytes=2_000, batch_records=333)
    assert 1 < maker.records_max < 333
    assert len(maker.make(0, maker.records_max, 0)) <= 2_000


def test_a_seed_makes_the_same_records_and_another_one_others() -> None:
    first, again, other = (BatchMaker(record_size=50, batch_bytes=2000, seed=seed) for seed in (1, 1, 2))
    count = first.records_max
    assert [first.make(n, count, 5) for n in range(8)] == [again.make(n, count, 5) for n in range(8)]
    assert first.make(0, count, 5) != other.make(0, count, 5)
    assert first.make(0, count, 5) != first.make(1, count, 5)


def test_only_our_own_stamp_is_read() -> None:
    value = b"whose it" + (77).to_bytes(8, "big") + b"more"
    assert stamp_of(value, b"whose it") == 77
    for foreign in (None, b"", b"whose it", b"whose is" + value[8:]):
        assert stamp_of(foreign, b"whose it") is None
