"""A hole is named whole, in order, and each offset of it with the reason it has."""

from hypothesis import given
from hypothesis import strategies as st

from seglog_protocol.messages import Gap, name_hole

_OFFSETS = st.integers(0, 30)


@st.composite
def _ranges(draw: st.DrawFn) -> list[Gap]:
    """Ranges as a broker may remember them: some empty, some within others."""
    return [
        Gap(start, start + draw(st.integers(0, 10)), draw(st.sampled_from(["damaged", "missing"])))
        for start in sorted(draw(st.lists(_OFFSETS, max_size=5)))
    ]


def _reason(offset: int, named: list[Gap], compacted_before: int) -> str:
    """The plain model: of one offset."""
    for gap in named:
        if gap.start <= offset < gap.end:
            return gap.reason
    return "compacted" if offset < compacted_before else "missing"


@given(start=_OFFSETS, size=st.integers(0, 30), named=_ranges(), compacted_before=st.integers(0, 60))
def test_every_offset_is_named_once_with_its_reason(
    start: int, size: int, named: list[Gap], compacted_before: int
) -> None:
    pieces = name_hole(start, start + size, named, compacted_before)
    told = [(offset, gap.reason) for gap in pieces for offset in range(gap.start, gap.end)]
    assert told == [(offset, _reason(offset, named, compacted_before)) for offset in range(start, start + size)]
    assert all(gap.start < gap.end for gap in pieces)


def test_a_hole_of_three_reasons_has_three_pieces() -> None:
    assert name_hole(10, 40, [Gap(5, 8, "damaged"), Gap(15, 20, "damaged"), Gap(50, 60, "missing")], 30) == [
        Gap(10, 15, "compacted"),
        Gap(15, 20, "damaged"),
        Gap(20, 30, "compacted"),
        Gap(30, 40, "missing"),
    ]
