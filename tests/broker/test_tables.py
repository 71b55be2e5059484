"""Tables of commands: aligned, and streamed."""

from seglog_broker.tables import ROWS_BEFORE_WIDTHS, Column, Table, columns, table_lines


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
