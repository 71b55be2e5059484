"""Groups of the consumer protocol (KIP-848), request by request: a daemon's answers beside those of a real Kafka."""

from pathlib import Path

import pytest

from tests.interop.kafka_cases import as_json, kept, unexpected
from tests.interop.kafka_group_cases import ANSWERS, CASES, SETTINGS, answers, captured
from tests.interop.kafka_group_differences import DIFFERENCES, differences
from tests.interop.peer import KAFKA_VERSION
from tests.processes import daemon


def test_answers_are_kafkas_but_for_the_differences_in_the_table(tmp_path: Path) -> None:
    expected = kept(ANSWERS)
    assert list(expected) == [case.title for case in CASES]
    assert expected.keys() > DIFFERENCES.keys()
    given = [flag for setting in ("listeners=PLAINTEXT://127.0.0.1:0", *SETTINGS) for flag in ("--set", setting)]
    with daemon(tmp_path / "data", *given) as running:
        assert unexpected(answers(running.kafka_port), expected, DIFFERENCES, differences) == []


@pytest.mark.soak
def test_the_answers_are_those_of_a_real_broker(tmp_path: Path) -> None:
    assert as_json(captured(tmp_path)) == kept(ANSWERS, KAFKA_VERSION)
