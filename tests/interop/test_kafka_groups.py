"""Groups of the consumer protocol (KIP-848), request by request: a daemon's answers beside those of a real Kafka."""

import json
from pathlib import Path

import pytest

from tests.interop.kafka_cases import unexpected, written
from tests.interop.kafka_group_cases import ANSWERS, CASES, SETTINGS, answers, captured
from tests.interop.kafka_group_differences import DIFFERENCES, differences
from tests.processes import daemon


def test_answers_are_kafkas_but_for_the_differences_in_the_table(tmp_path: Path) -> None:
    kept = json.loads(ANSWERS.read_text(encoding="utf-8"))
    assert list(kept) == [case.title for case in CASES]
    assert kept.keys() > DIFFERENCES.keys()
    given = [flag for setting in ("listeners=PLAINTEXT://127.0.0.1:0", *SETTINGS) for flag in ("--set", setting)]
    with daemon(tmp_path / "data", *given) as running:
        assert unexpected(answers(running.kafka_port), kept, DIFFERENCES, differences) == []


@pytest.mark.slow
def test_the_answers_are_those_of_a_real_broker(tmp_path: Path) -> None:
    assert written(captured(tmp_path)) == ANSWERS.read_text(encoding="utf-8")
