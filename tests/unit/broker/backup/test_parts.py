"""Parts that are merged, and pieces that share an object."""

from hypothesis import given
from hypothesis import strategies as st

from seglog_broker.backup.parts import OBJECT_BYTES, PART_BYTES, PARTS_A_TIER, count_kept, grouped
from seglog_broker.storage.segment.awaited import Part


def grown(sizes: list[int], *, is_last: bool = False) -> tuple[list[Part], int]:
    """The parts of a file that grew by these sizes, and how many bytes were written for them."""
    parts: list[Part] = []
    written = 0
    for number, size in enumerate(sizes):
        kept = count_kept(parts, size, is_last=is_last and number == len(sizes) - 1)
        whole = size + sum(part.size for part in parts[kept:])
        parts[kept:] = [Part(str(number), 0, whole, 0)]
        written += whole
    return parts, written


def test_parts_of_a_busy_log_are_written_once() -> None:
    sizes = [PART_BYTES] * 100
    parts, written = grown(sizes)
    assert (len(parts), written) == (100, sum(sizes))


@given(
    st.lists(st.integers(min_value=1, max_value=2 * PART_BYTES) | st.integers(min_value=1, max_value=500), max_size=300)
)
def test_a_file_has_all_bytes_in_few_small_parts_each_written_few_times(sizes: list[int]) -> None:
    parts, written = grown(sizes)
    assert sum(part.size for part in parts) == sum(sizes)
    run = longest = 0
    for part in parts:
        run = run + 1 if part.size < PART_BYTES else 0
        longest = max(longest, run)
    assert longest < 4 * PARTS_A_TIER + 1
    assert written <= 5 * sum(sizes)


def test_small_appends_are_written_about_twice() -> None:
    parts, written = grown([1_000] * 5_000)
    assert len(parts) < 3 * PARTS_A_TIER
    assert written < 3.5 * 5_000_000


def test_the_small_parts_of_a_closed_segment_become_one() -> None:
    parts, _ = grown([PART_BYTES, *[1_000] * 20], is_last=True)
    assert [part.size for part in parts] == [PART_BYTES, 20_000]
    assert count_kept(parts, 0, is_last=True) == 2
    assert count_kept([*parts, Part("", 0, 1, 0)], 0, is_last=True) == 1


Sized = tuple[str, int]


def objects_of(*pieces: Sized) -> list[list[Sized]]:
    keys = (lambda piece: piece[0], lambda piece: piece[0][0])
    return list(grouped(pieces, lambda piece: piece[1], keys))


def test_what_expires_together_shares_an_object_and_the_rest_another() -> None:
    large, half, small = ("a1", OBJECT_BYTES), OBJECT_BYTES // 2, ("c1", 5)
    assert objects_of(small, ("b1", half), large, ("b2", half), ("d1", 7)) == [
        [large],
        [("b1", half), ("b2", half)],
        [small, ("d1", 7)],
    ]
    assert objects_of() == []
