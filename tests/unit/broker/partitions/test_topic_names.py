"""Suggestions for unknown names, and that the search for them is bounded with any names."""

from collections.abc import Iterator
from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st

from seglog_broker.partitions.topic_names import CANDIDATES_MAX, NAME_MAX, NAMES_MAX, Suggestions, nearest_name
from tests.support import each_case

KNOWN: Final = ["orders", "orders-eu", "commits", "click.stream", "Payments_2024"]


@each_case(
    ("name", "nearest"),
    [
        ("order", "orders"),
        ("ordres", "orders"),
        ("Orders", "orders"),
        ("rders", "orders"),
        ("commit", "commits"),
        ("click-stream", "click.stream"),
        ("Payments_2025", "Payments_2024"),
        ("zzz", ""),
        ("", ""),
        ("o", ""),
        ("orders" * 60, ""),
    ],
)
def test_a_typing_error_gets_a_suggestion_and_a_different_name_gets_none(name: str, nearest: str) -> None:
    assert nearest_name(name, KNOWN) == nearest


@given(st.text(max_size=300), st.lists(st.text(max_size=30)))
def test_any_names_give_a_known_one_or_none(name: str, known: list[str]) -> None:
    assert nearest_name(name, known) in {"", *known}


@given(st.lists(st.text("abc-", min_size=6, max_size=20), min_size=1, max_size=30, unique=True), st.data())
def test_a_known_name_with_one_letter_more_is_found_again(known: list[str], data: st.DataObject) -> None:
    wanted = data.draw(st.sampled_from(known))
    at = data.draw(st.integers(0, len(wanted)))
    found = nearest_name(f"{wanted[:at]}x{wanted[at:]}", known)
    assert found, "it, or one that is as near"


def test_the_work_is_bounded_whatever_names_there_are() -> None:
    """Counts names considered and names compared letter by letter; measures no time."""
    compared = looked_at = 0

    class Name(str):
        __slots__ = ()

        def __getitem__(self, key: Any) -> str:  # to compare it, what it has in common with the other is cut off
            nonlocal compared
            compared += 1
            return super().__getitem__(key)

    def names() -> Iterator[str]:
        nonlocal looked_at
        for number in range(10 * NAMES_MAX):
            looked_at += 1
            yield Name(f"{'a' * 200}-{number % 7}{number}")

    nearest_name("a" * 205, names())
    assert 0 < compared <= CANDIDATES_MAX
    assert looked_at <= NAMES_MAX
    nearest_name("a" * (NAME_MAX + 1), names())
    assert compared <= CANDIDATES_MAX, "too long a name is compared with nothing"


def test_one_name_is_looked_up_for_each_request() -> None:
    hints = Suggestions()
    hints.renew()
    assert [hints.nearest(name, KNOWN) for name in ("order", "commit", "order")] == ["orders", "", "orders"]
    hints.renew()
    assert hints.nearest("commit", KNOWN) == "commits"
