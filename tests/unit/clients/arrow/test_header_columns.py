from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.arrow.decoding import LOCKSTEP_MIN, decode_headers
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.batch_columns import read_batches
from seglog_protocol.record_columns import RecordColumns, open_batches
from seglog_protocol.records import Headers, encode_record
from tests.unit.protocol import golden

_HEADERS = st.lists(st.tuples(st.text(max_size=70), st.none() | st.binary(max_size=70)), max_size=5)


def _records(batch: bytes) -> RecordColumns:
    (opened,) = open_batches(read_batches(batch))
    assert not opened.records.malformed
    return opened.records


def _read(records: RecordColumns, first: int = 0, last: int | None = None) -> list[Headers]:
    headers = decode_headers(records, first, last)
    names = [
        bytes(records.data[start : start + length]).decode()
        for start, length in zip(headers.key_start.tolist(), headers.key_length.tolist(), strict=True)
    ]
    values = [
        None if length < 0 else bytes(records.data[start : start + length])
        for start, length in zip(headers.value_start.tolist(), headers.value_length.tolist(), strict=True)
    ]
    assert len(headers) == len(names)
    edges = headers.first_header.tolist()
    pairs = list(zip(names, values, strict=True))
    return [tuple(pairs[start:stop]) for start, stop in pairwise(edges)]


@given(st.lists(_HEADERS, min_size=1, max_size=12), st.sampled_from([1, LOCKSTEP_MIN]), st.data())
def test_columns_hold_the_headers_that_the_loop_reads(headers: list[Headers], times: int, data: st.DataObject) -> None:
    headers = headers * times
    batch = encode_batch([(0, None, b"v", found) for found in headers])
    expected = [record.headers for record in golden.read(batch)]
    first = data.draw(st.integers(0, len(headers)))
    last = data.draw(st.integers(first, len(headers)))
    assert _read(_records(batch)) == expected
    assert _read(_records(batch), first, last) == expected[first:last]


@pytest.mark.parametrize("counts", [[300], [0, 1, 300, 2], [3] * 40 + [200] * 2])
def test_records_with_many_headers_are_read_to_their_end(counts: list[int]) -> None:
    headers: list[Headers] = [
        [(f"é{n}" * (n % 40), None if n % 3 == 0 else bytes(n)) for n in range(count)] for count in counts
    ]
    batch = encode_batch([(0, b"k", None, found) for found in headers])
    assert _read(_records(batch)) == [tuple(found) for found in headers]


def test_any_negative_length_is_no_value_and_numbers_may_be_longer_than_they_need() -> None:
    plain = encode_record(0, 0, None, b"v", [("k", b"")])
    # The header's value length, 0, as -2 and as a varint of two bytes.
    for length, expected in ((b"\x03", None), (b"\x80\x00", b"")):
        body = plain[1:-1] + length
        batch = golden.batch_of(bytes([2 * len(body)]) + body)
        assert _read(_records(batch)) == [(("k", expected),)] == [record.headers for record in golden.read(batch)]


def test_headers_that_kafka_wrote_are_read() -> None:
    assert _read(_records(golden.IDEMPOTENT)) == [record.headers for record in golden.IDEMPOTENT_READ]
