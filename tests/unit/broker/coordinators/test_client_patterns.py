"""Regular expressions of topics: what they match as a real Kafka does, and what is bounded."""

import json
import re
import string
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seglog_broker.coordinators import client_patterns
from seglog_broker.coordinators.client_patterns import TEXT_BYTES_MAX, ClientPattern, PatternError
from seglog_protocol.kafka.error_codes import ErrorCode
from tests.interop.kafka_expressions import ANSWERS, NAMES
from tests.support import each_case, examples

_UNLIKE_KAFKA: Final = {
    "(p{1000}){2}": "RE2 counts a repetition of repetitions",
    "(p{30}){40}": "RE2 counts a repetition of repetitions",
    "((p{0,1000}){0,1000}lain)": "RE2 counts a repetition of repetitions",
    "(?P<é>plain)": "RE2 takes the names of groups that are not ASCII",
    r"\pL" * 600: "too many classes of Unicode's",
}


def matched(pattern: str, names: list[str]) -> list[str]:
    return sorted(name for name in ClientPattern(pattern).matching(names) if name is not None)


def answer(pattern: str) -> list[str] | int:
    try:
        return matched(pattern, [*NAMES])
    except PatternError:
        return ErrorCode.INVALID_REGULAR_EXPRESSION.value


def test_expressions_match_what_a_real_kafka_matches() -> None:
    kafka = json.loads(ANSWERS.read_text(encoding="utf-8"))
    assert {text for text in kafka if answer(text) != kafka[text]} == _UNLIKE_KAFKA.keys()


@given(st.text(string.printable, max_size=20), st.text(st.sampled_from("abAB01._-"), min_size=1, max_size=8))
@settings(max_examples=examples(2_000))
def test_any_text_is_taken_or_refused_with_a_reason(pattern: str, name: str) -> None:
    try:
        matched(pattern, [name])
        reason = ""
    except PatternError as error:
        reason = str(error)
    assert not reason or re.search("RE2 says: .|Kafka's brokers take", reason)


@each_case(
    "pattern",
    ["a" * (TEXT_BYTES_MAX + 1), r"\pL" * 600, r"(?i)\pL" * 600, r"\W" * 16_000, "[^a]" * 8_000, r"\pL{100}" * 99],
)
def test_what_would_take_long_to_read_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError, match=r"bytes: more than|too many classes|too large"):
        ClientPattern(pattern)


@each_case("pattern", ["(a*)*b", "(a|a)*b", "(a+)+b", "(.*)(.*)(.*)(.*)b"])
def test_an_expression_for_which_python_takes_for_ever_is_matched(pattern: str) -> None:
    assert matched(pattern, ["a" * 249, "a" * 200 + "b"]) == ["a" * 200 + "b"]


class Clock:
    """Processor time that goes on by a millisecond whenever it is looked at."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


def test_others_have_a_turn_after_some_milliseconds() -> None:
    found = list(ClientPattern("b?a").matching(["a", "b"] * 50, Clock()))
    assert [found[at] for at in range(5)] == ["a", "a", "a", None, "a"]
    assert found.count("a") == 50


def test_an_expression_that_takes_too_long_is_given_up() -> None:
    names = [str(name) for name in range(int(client_patterns.MATCHING_SECONDS_MAX * 1_000) + 100)]
    with pytest.raises(PatternError, match="takes too long"):
        list(ClientPattern("x").matching(names, Clock()))
