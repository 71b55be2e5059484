"""Tables of commands: aligned, streamed, or of given widths."""

from collections.abc import Iterable, Iterator, Sequence

from hypothesis import given
from hypothesis import strategies as st

from seglog_protocol.tables import (
    ROWS_BEFORE_WIDTHS,
    Column,
    Table,
    columns,
    table_line,
    table_lines,
    titles_of,
    widths_of,
)


def test_a_table_streams_once_its_widths_are_known() -> None:
    table = Table((Column("n", right=True), Column("text")))
    out: list[str] = []
    for number in range(ROWS_BEFORE_WIDTHS - 1):
        out += table.row((str(number), "x"))
    assert out == []
    out += table.row(("9999", "wide"))
    assert len(out) == ROWS_BEFORE_WIDTHS + 1
    assert out[1] == "   0  x"
    assert list(table.row(("123456", "y"))) == ["123456  y"]
    assert list(table.flush()) == []


def test_a_table_that_is_nothing_but_rows_has_its_titles_and_aligned_cells() -> None:
    rows = [("a", "1", ""), ("longer", "200", "more")]
    assert list(table_lines(columns("name", ">count", ""), rows)) == [
        "name    count",
        "a           1",
        "longer    200  more",
    ]


def test_a_table_without_rows_has_no_titles_either() -> None:
    assert list(table_lines(columns("name"), [])) == []


def test_cells_are_aligned_each_by_itself_where_a_column_has_both_numbers_and_words() -> None:
    mixed = (Column("AGE", right=None), Column("KEPT", right=None))
    rows = [titles_of(mixed), ["1,000", "-"], ["-", "7"], ["20", "for ever"]]
    widths = widths_of(rows)
    assert widths == [5, 8]
    assert [table_line(mixed, widths, row) for row in rows] == [
        "AGE    KEPT",
        "1,000  -",
        "-             7",
        "   20  for ever",
    ]


def test_a_cell_that_is_wider_than_a_given_width_shifts_only_its_own_line() -> None:
    narrow = columns("name", ">count", "")
    assert table_line(narrow, (6, 5, 0), ("a", "1", "note"), gap=" ") == "a          1 note"
    assert table_line(narrow, (6, 5, 0), ("much longer", "1", ""), gap=" ") == "much longer     1"


def test_columns_for_which_a_terminal_has_no_room_stand_below_their_row() -> None:
    wide = columns("name", ">count", "when it was", "", "why")
    table = Table(wide, "  ", 24)
    rows = [("a", "1", "2024-01-01", "odd", "because"), ("b", "2", "-", "", "")]
    lines = [line for row in rows for line in table.row(row)] + list(table.flush())
    assert lines == [
        "  name  count",
        "  a         1",
        "      when it was 2024-01-01,",
        "      odd, why because",
        "  b         2",
    ]


@given(
    st.lists(st.lists(st.text("ab1", max_size=12), min_size=4, max_size=4), min_size=1, max_size=6),
    st.integers(1, 60),
)
def test_a_table_on_a_terminal_has_every_cell_and_is_no_wider_than_it_must(rows: list[list[str]], width: int) -> None:
    lines = list(_lines(Table(columns("one", ">two", "three", "four"), width=width), rows))
    for row in rows:
        assert all(any(cell in line for line in lines) for cell in row)
    widest = max(len(f"    three {cell},") for row in rows for cell in row)
    assert max(map(len, lines)) <= max(width, widest)
    whole = list(_lines(Table(columns("one", ">two", "three", "four")), rows))
    assert len(whole) == len(rows) + 1
    if max(map(len, whole)) <= width:
        assert len(lines) <= len(rows) * 2 + 1


def _lines(table: Table, rows: Iterable[Sequence[str]]) -> Iterator[str]:
    for row in rows:
        yield from table.row(row)
    yield from table.flush()
