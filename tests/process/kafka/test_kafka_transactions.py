"""Transactions, request by request: a daemon's answers beside those of a real Kafka."""

from pathlib import Path

import pytest

from tests.interop.kafka_cases import as_json, kept
from tests.interop.kafka_transaction_cases import (
    ANSWERS,
    EXPIRING,
    EXPIRING_SETTINGS,
    SETTINGS,
    STORIES,
    answers,
    captured,
)
from tests.interop.kafka_transaction_differences import DIFFERENCES
from tests.interop.peer import KAFKA_VERSION
from tests.processes import daemon


def test_answers_are_kafkas_but_for_the_differences_in_the_table(tmp_path: Path) -> None:
    expected: dict[str, list[str]] = kept(ANSWERS)
    assert expected.keys() > DIFFERENCES.keys()
    for name, (_, ours) in DIFFERENCES.items():
        for number, line in ours.items():
            assert expected[name][number] != line, "it is Kafka's"
            expected[name][number] = line
    found: dict[str, list[str]] = {}
    for name, settings, stories in ("data", SETTINGS, STORIES), ("expiring", EXPIRING_SETTINGS, EXPIRING):
        given = [flag for setting in ("listeners=PLAINTEXT://127.0.0.1:0", *settings) for flag in ("--set", setting)]
        with daemon(tmp_path / name, *given) as running:
            found |= answers(running.kafka_port, stories)
    assert found == expected


@pytest.mark.soak
def test_the_answers_are_those_of_a_real_broker(tmp_path: Path) -> None:
    assert as_json(captured(tmp_path)) == kept(ANSWERS, KAFKA_VERSION)
