from hypothesis import given
from hypothesis import strategies as st

from seglog_protocol.batch_builder import NewRecord, encode_batch
from seglog_protocol.compression import Codec
from seglog_protocol.record_batch import parse_header, verify_crc
from seglog_protocol.records import decode_records
from seglog_spark.marks import MARK_BYTES_MAX, MARK_HEADER, Mark, Writing, marked, part_of, read_mark, without
from tests.support import each_case

MARK = Mark(Writing("5c7e", 12, 3), rows=4000, partitions=6)
OF_A_JOB = Mark(Writing("nightly", 0, 3), rows=4000, partitions=6, content=7)
BYTES = st.none() | st.binary(max_size=40)
RECORDS = st.lists(
    st.tuples(
        st.integers(0, 2**41),
        BYTES,
        BYTES,
        st.lists(st.tuples(st.text(max_size=5), BYTES), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=20,
)


@given(RECORDS, st.sampled_from(Codec), st.sampled_from([MARK, OF_A_JOB]))
def test_a_mark_stands_behind_the_first_records_own_headers_and_nothing_else_changes(
    records: list[NewRecord], codec: Codec, mark: Mark
) -> None:
    plain = encode_batch(records)
    batch = marked(plain, mark, codec)
    header = parse_header(batch)
    assert verify_crc(batch, 0, header)
    assert header.codec == codec
    first, *rest = decode_records(header, batch)
    assert first.headers == (*records[0][3], (MARK_HEADER, mark.encode()))
    assert read_mark(first.headers) == mark
    own, *others = decode_records(parse_header(plain), plain)
    assert (first[:4], rest) == (own[:4], others)


def test_a_mark_with_long_names_has_the_room_that_is_kept_for_it() -> None:
    mark = Mark(Writing("q" * 200, 2**63, 2**31), rows=2**63, partitions=2**31, content=2**64 - 1)
    plain = encode_batch([(0, None, b"value", ())])
    assert len(marked(plain, mark, Codec.NONE)) <= len(plain) + MARK_BYTES_MAX


@each_case("value", [None, b"", b"{", b"[]", b'{"query": "q"}', b'{"query":"q","epoch":"x"}'])
def test_what_is_no_mark_is_none(value: bytes | None) -> None:
    assert read_mark(((MARK_HEADER, value),)) is None
    assert read_mark(()) is None


@given(RECORDS, st.data())
def test_a_part_of_a_batch_has_the_records_of_that_part(records: list[NewRecord], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(records) - 1))
    end = data.draw(st.integers(first + 1, len(records)))
    part = part_of(encode_batch(records), (first, end))
    assert [record[1:] for record in decode_records(parse_header(part), part)] == records[first:end]


ROWS = st.tuples(st.integers(0, 50), st.integers(0, 20)).map(lambda rows: (rows[0], rows[0] + rows[1]))


@given(ROWS, st.lists(ROWS))
def test_what_is_left_of_rows_is_what_was_not_written(rows: tuple[int, int], written: list[tuple[int, int]]) -> None:
    left = without(rows, written)
    found = [row for first, end in left for row in range(first, end)]
    assert found == [row for row in range(*rows) if not any(first <= row < end for first, end in written)]
