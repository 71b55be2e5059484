"""Names and passwords as clients write them."""

from seglog_broker.security.credentials import prepared
from tests.support import each_case


@each_case(
    ("text", "expected"),
    [
        ("alice", "alice"),
        ("\N{ROMAN NUMERAL NINE}", "IX"),
        ("a\N{COMBINING DIAERESIS}", "ä"),
        ("I\N{SOFT HYPHEN}X", "IX"),
        ("\0", "\0"),
        ("", ""),
    ],
)
def test_a_text_is_prepared_where_that_is_possible(text: str, expected: str) -> None:
    assert prepared(text) == expected


def test_a_text_that_would_be_too_long_is_not_looked_at() -> None:
    """Its 6,120 characters would take a hundredth of a second, of every other client."""
    ligature = "\N{ARABIC LIGATURE SALLALLAHOU ALAYHE WASALLAM}"
    assert len(prepared(ligature)) == 18
    assert prepared(ligature * 340) == ligature * 340
