"""Fingerprints against what they promise: of the row alone, and of all of it."""

from collections.abc import Sequence

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from seglog.arrow.columns import new_records
from seglog_protocol.batch_builder import NewRecord
from seglog_spark.fingerprints import BLOCK_BYTES, fingerprints, total
from tests.unit.clients.arrow.tables import table_of

_BYTES = st.none() | st.binary(max_size=12) | st.sampled_from([bytes(BLOCK_BYTES - 1), b"x" * (2 * BLOCK_BYTES + 3)])
_HEADERS = st.lists(st.tuples(st.sampled_from(["", "h"]), st.none() | st.binary(max_size=3)), max_size=2).map(tuple)
_ROWS = st.lists(st.tuples(st.integers(0, 9), _BYTES, _BYTES, _HEADERS), min_size=1, max_size=12)


def of(records: Sequence[NewRecord], partitions: Sequence[int | None] | None = None) -> list[int]:
    return [int(number) for number in fingerprints(new_records(table_of(records, partitions), 0))]


@given(_ROWS, st.data())
def test_a_row_has_its_fingerprint_wherever_it_stands(records: list[NewRecord], data: st.DataObject) -> None:
    whole = of(records)
    assert whole == [number for record in records for number in of([record])]
    first = data.draw(st.integers(0, len(records) - 1))
    last = data.draw(st.integers(first, len(records)))
    part = new_records(table_of(records), 0).part(first, last)
    assert [int(number) for number in fingerprints(part)] == whole[first:last]
    assert total(fingerprints(part)) == sum(whole[first:last]) % 2**64


@given(_ROWS)
def test_rows_have_one_fingerprint_if_they_differ_in_time_only_and_else_two(records: list[NewRecord]) -> None:
    rows = [record[1:] for record in records]
    assert len(set(of(records))) == len(set(rows))


def test_what_is_easily_mistaken_for_something_else_is_told_from_it() -> None:
    rows: list[NewRecord] = [
        (0, key, value, headers)
        for key, value, headers in (
            (None, None, ()),
            (b"", None, ()),
            (None, b"", ()),
            (b"a", b"b", ()),
            (b"b", b"a", ()),
            (b"ab", b"", ()),
            (None, b"a\0", ()),
            (None, b"\0a", ()),
            (None, b"a", ()),
            (None, b"a", (("a", None),)),
            (None, b"a", (("a", b""),)),
        )
    ]
    assert len(set(of(rows))) == len(rows)
    assert len({of(rows[:1])[0], of(rows[:1], [0])[0], of(rows[:1], [1])[0]}) == 3


def test_a_sum_tells_rows_whose_bytes_were_dealt_out_otherwise() -> None:
    def summed(*values: bytes) -> int:
        return total(fingerprints(new_records(pa.record_batch({"value": pa.array(values, pa.binary())}), 0)))

    assert summed(b"ab", b"cd") == summed(b"cd", b"ab")
    assert len({summed(b"ab", b"cd"), summed(b"ad", b"cb"), summed(b"abcd", b""), summed(b"ab", b"cd", b"")}) == 4
