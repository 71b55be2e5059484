"""One segment drawn: entries, codecs, how dense records lie, and their times."""

from datetime import UTC
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from seglog.cli.pictures.density import DAMAGED, Batch, Entry, density_picture
from seglog.cli.pictures.model import Kind, Picture, Row
from seglog.cli.pictures.svg import element_of
from tests.support import examples
from tests.unit.clients.cli.pictures.test_pictures import NOW

PLAIN = [Batch(1000 * n, 1000, 10 * n, 10 * n + 10, 10, NOW + 1000 * n, "none") for n in range(4)]
PACKED = [Batch(4000 + 500 * n, 500, 40 + 10 * n, 50 + 10 * n, 10, NOW + 9000 + n, "zstd") for n in range(2)]


def drawn(batches: list[Batch], entries: list[Entry] | None = None) -> Picture:
    size = max(batch.position + batch.size for batch in batches)
    return density_picture("a segment", size, batches, entries or [], ["all of it"], UTC)


def rows(picture: Picture) -> dict[str, Row]:
    return {row.label[0]: row for strip in picture.strips for row in strip.rows}


def test_each_codec_has_a_row_in_which_neighbours_are_one() -> None:
    found = rows(drawn([*PLAIN, *PACKED]))
    [plain], [packed] = found["none"].spans, found["zstd"].spans
    assert (plain.first, plain.last, packed.first, packed.last) == (0, 0.8, 0.8, 1)
    assert found["none"].details == ("batches: 4, of 1 kB to 1 kB",)
    assert found["zstd"].details == ("batches: 2, of 500 B to 500 B",)


def test_bars_are_as_high_as_records_are_dense_and_times_late() -> None:
    found = rows(drawn([*PLAIN, *PACKED]))
    assert [span.height for span in found["records"].spans] == [0.5] * 4 + [1.0] * 2
    assert found["records"].details == ("in a kilobyte: 10 to 20",)
    heights = [span.height for span in found["time"].spans]
    assert heights == sorted(heights)
    assert found["time"].details == ("from 2023-11-14T22:13:20.000Z to 2023-11-14T22:13:29.001Z",)


def test_entries_of_the_index_lie_where_they_lead_to() -> None:
    [entry] = rows(drawn(PLAIN, [Entry(19, 2000)]))["index"].marks
    assert (entry.at, entry.kind, entry.name) == (0.5, Kind.ENTRY, "offset 19")


def test_batches_of_which_only_the_place_is_known_are_so_called_and_have_no_times() -> None:
    found = rows(drawn([batch._replace(codec="", timestamp=None) for batch in PLAIN]))
    assert set(found) == {"not read", "records"}


def test_what_is_damaged_has_a_row_and_no_bars() -> None:
    found = rows(drawn([*PLAIN, Batch(4000, 1000, 40, 50, 0, None, DAMAGED)]))
    assert [(span.kind, span.first, span.last) for span in found[DAMAGED].spans] == [(Kind.WRONG, 0.8, 1)]
    assert len(found["records"].spans) == len(found["time"].spans) == len(PLAIN)
    assert set(rows(drawn([Batch(0, 1000, 0, 50, 0, None, DAMAGED)]))) == {DAMAGED}


def test_thousands_of_batches_are_sixty_bars() -> None:
    batches = [Batch(100 * n, 100, n, n + 1, 1, n, "none" if n % 2 else "lz4") for n in range(40_000)]
    picture = drawn(batches)
    assert [len(rows(picture)[name].spans) for name in ("records", "time")] == [60] * 2
    assert len(element_of(picture)) < 60_000


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(*[st.integers(1, 10**6)] * 3, st.none() | st.integers(-1, 2**62)), min_size=1, max_size=90))
def test_spans_of_any_batches_lie_side_by_side(sizes: list[tuple[int, int, int, int | None]]) -> None:
    batches, position, offset = [], 0, 0
    for size, count, records, timestamp in sizes:
        batches.append(Batch(position, size, offset, offset + count, records, timestamp, "gzip"))
        position, offset = position + size, offset + count
    for row in rows(drawn(batches)).values():
        assert all(before.last <= after.first + 1e-9 for before, after in pairwise(row.spans))
        assert all(0 <= span.first <= span.last <= 1 and span.height <= 1 for span in row.spans)
