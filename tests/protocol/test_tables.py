"""Tables of commands: aligned, streamed, or of given widths."""

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
    given = columns("name", ">count", "")
    assert table_line(given, (6, 5, 0), ("a", "1", "note"), gap=" ") == "a          1 note"
    assert table_line(given, (6, 5, 0), ("much longer", "1", ""), gap=" ") == "much longer     1"
