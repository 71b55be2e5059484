import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.arrow.reading import one_buffer, pieces
from seglog.core.records import FetchedBatch
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.errors import CorruptRecordError
from seglog_protocol.record_batch import parse_header


def batch(data: memoryview, partition: int = 0) -> FetchedBatch:
    header = parse_header(data, 0)
    return FetchedBatch("t", partition, header, data, header.base_offset, header.next_offset)


BATCH = encode_batch([(0, b"k", b"v" * 100, [])])
SIZE = len(BATCH)


def views(count: int) -> list[memoryview]:
    """Neighbours in one buffer."""
    whole = memoryview(BATCH * count)
    return [whole[start : start + SIZE] for start in range(0, len(whole), SIZE)]


@given(st.integers(0, 5), st.integers(1, 5), st.sampled_from([bytes, bytearray]))
def test_neighbours_are_looked_at_where_they_are(start: int, count: int, kind: type[bytes | bytearray]) -> None:
    whole = kind(b"0123456789" * 10)
    parts = [memoryview(whole)[place * 7 : place * 7 + 7] for place in range(start, start + count)]
    found = one_buffer(parts)
    assert bytes(found) == b"".join(parts)
    assert isinstance(found, memoryview)
    assert found.obj is whole


@pytest.mark.parametrize(
    "parts",
    [
        [memoryview(b"ab"), memoryview(b"cd")],
        [memoryview(b"abcd")[:1], memoryview(b"abcd")[2:]],
        [part := memoryview(b"abcd")[2:], memoryview(part.obj)[:2]],
    ],
    ids=["elsewhere", "with a hole", "the other way round"],
)
def test_what_does_not_lie_in_a_row_is_copied_together(parts: list[memoryview]) -> None:
    assert one_buffer(parts) == b"".join(parts)


def test_pieces_are_of_one_partition() -> None:
    """A piece is of one partition and ends with the buffer when it is worth decoding."""
    first, second = views(3), views(4)
    batches = [*map(batch, first), *map(batch, second), batch(second[0], 1)]
    assert [len(piece) for piece in pieces(batches, 5 * SIZE)] == [3, 4, 1], "each lies in one buffer"
    assert [len(piece) for piece in pieces(batches, 4 * SIZE)] == [3, 4, 1]
    assert [len(piece) for piece in pieces(batches, 2 * SIZE)] == [2, 1, 2, 2, 1]
    assert [len(piece) for piece in pieces(batches, 1000 * SIZE)] == [7, 1], "small ones are worth a copy"


def test_what_came_before_an_error_is_handed_out_first() -> None:
    def broken() -> object:
        yield from map(batch, views(3))
        raise CorruptRecordError("no")

    found = pieces(broken(), 1 << 20)  # type: ignore[arg-type]
    assert len(next(found)) == 3
    with pytest.raises(CorruptRecordError):
        next(found)
