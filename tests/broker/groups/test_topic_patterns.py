"""Regular expressions of topics: what they match as Python's own engine does, what RE2 refuses, and bounded time."""

import re
import string
from random import Random
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog_broker.groups.topic_patterns import PatternError, TopicPattern
from tests.support import examples

NAMES: Final = st.text(st.sampled_from("abAB01._-"), min_size=1, max_size=8)


def matches(pattern: str, name: str) -> bool:
    return bool(TopicPattern(pattern).matching([name]))


# --- What both engines read the same way ------------------------------------------------------------------------------


def _repeated(items: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    bounds = st.sampled_from(["*", "+", "?", "*?", "+?", "??", "{2}", "{0,2}", "{1,}", "{0}", "{1,2}?"])
    return st.builds(lambda item, bound: f"(?:{item}){bound}", items, bounds)


_SINGLES: Final = st.one_of(
    st.sampled_from(["a", "b", "A", "0", r"\.", "_", "-", ".", r"\x61", "(?i:a)", "()"]),
    st.sampled_from([r"\d", r"\w", r"\W", r"\D", r"\s", r"\S", "[ab]", "[^ab]", "[a-b0-1]", r"[^\d]", r"[\w.]"]),
    st.sampled_from(["[]a]", "[a-]", "[^-]", r"[\x30-\x31]", r"\b", r"\B", "^", "$", r"\A"]),
)
PATTERNS: Final = st.recursive(
    _SINGLES,
    lambda items: st.one_of(
        st.lists(items, max_size=4).map("".join),
        st.lists(items.map(lambda item: f"(?:{item})"), min_size=1, max_size=3).map("|".join),
        items.map(lambda item: f"({item})"),
        items.map(lambda item: f"(?i:{item})"),
        _repeated(items),
    ),
    max_leaves=8,
)


@given(PATTERNS | PATTERNS.map(lambda pattern: f"(?P<name>{pattern})b?"), st.lists(NAMES, max_size=8))
@settings(max_examples=examples(5_000))
def test_names_match_as_they_do_in_python(pattern: str, names: list[str]) -> None:
    expected = re.compile(pattern, re.ASCII)
    assert TopicPattern(pattern).matching(names) == {name for name in names if expected.fullmatch(name)}


@given(st.text(string.printable, max_size=20), NAMES)
@settings(max_examples=examples(5_000))
def test_any_text_is_taken_or_refused_with_a_reason(pattern: str, name: str) -> None:
    try:
        assert matches(pattern, name) in {True, False}
    except PatternError as error:
        refused = str(error)
        assert refused


# --- What is RE2's own ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("orders", ["orders"], ["orders2", "my-orders", "order", ""]),
        ("^orders$", ["orders"], ["orders2"]),
        (r"\Aorders\z", ["orders"], ["orders2"]),
        ("order|fruit", ["order", "fruit"], ["orderfruit", "orders"]),
        (r"\Qa.b\E.*", ["a.b", "a.bc"], ["axb"]),
        (r"\Qa.b", ["a.b"], ["axb"]),
        (r"\pL+", ["abc"], ["a1"]),
        (r"\p{Lu}\P{Lu}", ["Ab"], ["AB", "ab"]),
        (r"\p{^Nd}", ["a"], ["1"]),
        (r"\p{Latin}+", ["aZ"], ["a1"]),
        ("[[:alpha:]_]+", ["a_b"], ["a1"]),
        ("[[:^digit:]]+", ["a_b"], ["a1"]),
        ("(?i)ORDERS", ["orders", "oRders"], []),
        ("(?i:o)rders", ["Orders"], ["ORDERS"]),
        ("(?i)o(?-i)rders", ["Orders"], ["ORDERS"]),
        ("(?<n>a)", ["a"], []),
        ("(?P<n>a)", ["a"], []),
        ("(?sm-U)a", ["a"], []),
        (r"\x{61}\141", ["aa"], []),
        (r"\_\-\.", ["_-."], []),
        ("a{,2}", [], ["a", "aa"]),  # RE2 takes such braces as they are, and names have none
        ("[A-Z-]", ["-", "B"], ["b"]),
        ("é|a", ["a"], []),
        ("", [""], ["a"]),
    ],
)
def test_names_match_as_they_do_in_re2(pattern: str, matching: list[str], others: list[str]) -> None:
    assert TopicPattern(pattern).matching(matching + others) == set(matching)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", r"a \( without"),
        (")", r"a \) without"),
        ("[a", r"a \[ without"),
        ("[b-a]", "range b-a is empty"),
        ("*", r"\* has nothing to repeat"),
        ("a**", "repetition of a repetition"),
        ("a{2}{3}", "repetition of a repetition"),
        ("a{1001}", "up to 1000 times"),
        ("a{3,2}", "up to 1000 times"),
        ("a\\", "ends with a backslash"),
        (r"(a)\1", r"no backreferences: \\1"),
        ("(?P=a)", "no backreferences"),
        ("(?=a)", "no lookahead"),
        ("(?!a)", "no lookahead"),
        ("(?<=a)", "no lookbehind"),
        ("(?<!a)", "no lookbehind"),
        ("(?>a)", "no atomic groups"),
        ("(?#a)", "no comments"),
        ("(?(1)a)", "no conditions"),
        ("(?x)a", "no flag 'x'"),
        ("(?P<1>a)", "'1' is not a name"),
        ("(?P<a>a)(?<a>b)", "two groups have the name 'a'"),
        ("(?P<a", "name of a group has no end"),
        (r"\Z", r"no \\Z"),
        (r"\p{Nope}", r"\\p{Nope} is not a class"),
        (r"\p{L", r"no }"),
        ("[[:nope:]]", r"\[:nope:\] is not a class"),
        (r"\x{1234567}", "is not a character"),
        (r"\xg1", "is not a character"),
        ("(" * 101 + ")" * 101, "nested more than 100 deep"),
        ("((a{1000}){1000}){1000}", "too large"),
    ],
)
def test_what_re2_has_not_is_refused_with_the_reason(pattern: str, reason: str) -> None:
    with pytest.raises(PatternError, match=reason):
        TopicPattern(pattern)


# --- Time -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["(a*)*b", "(a|a)*b", "(a+)+b", "(.*)(.*)(.*)(.*)b"])
def test_an_expression_for_which_python_takes_for_ever_is_matched_with_little_work(pattern: str) -> None:
    slow = TopicPattern(pattern.replace(")*b", "){0,}b"))
    assert slow.matching(["a" * 249, "a" * 200 + "b"]) == {"a" * 200 + "b"}


def test_names_that_begin_alike_share_their_work() -> None:
    pattern = TopicPattern("topic-[0-9]+")
    names = [f"topic-{number}" for number in range(50_000)]
    assert pattern.matching([*names, "other"]) == set(names)


def test_an_expression_that_takes_too_long_is_given_up() -> None:
    choices = Random(1)
    names = ["".join(choices.choices("ab", k=249)) for _ in range(2_000)]
    with pytest.raises(PatternError, match="takes too long"):
        TopicPattern(".*a.{200}").matching(names)
