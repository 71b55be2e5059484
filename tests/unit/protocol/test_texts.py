"""Names that others chose."""

from seglog_protocol.texts import first_of, printable, shortened
from tests.support import each_case


@each_case(
    ("text", "shown"),
    [
        ("plain größe", "plain größe"),
        ("red\x1b[31m", r"red\x1b[31m"),
        ("two\nlines\r\t", r"two\nlines\r\t"),
        ("\u202eback", r"\u202eback"),
        ("\x9b2J", r"\x9b2J"),
    ],
)
def test_what_would_not_print_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_long_name_keeps_both_ends() -> None:
    assert shortened("a" * 10, 10) == "a" * 10
    assert shortened("consumer-of-clicks-1234", 13) == "consu...-1234"
    assert [len(shortened("x" * 100, most)) for most in (10, 11, 64)] == [10, 11, 64]


def test_the_first_names_and_how_many_there_are_beside() -> None:
    assert first_of(["a", "b"], 2) == "a, b"
    assert first_of(map(str, range(1_007)), 1_007) == "0, 1, 2, 3, 4, 1,002 more"
    assert first_of([], 0) == ""
