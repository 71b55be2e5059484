"""Transactions, request by request: a daemon's answers beside those of a real Kafka."""

from pathlib import Path
from types import ModuleType

import pytest

from tests.interop import (
    kafka_access_cases,
    kafka_admin_cases,
    kafka_group_cases,
    kafka_security_cases,
    kafka_share_cases,
)
from tests.interop import kafka_transaction_cases as cases
from tests.interop import kafka_transaction_differences as transactions
from tests.interop.kafka_cases import as_json, kept
from tests.interop.peer import KAFKA_VERSION
from tests.processes import kafka_daemon


def test_answers_about_transactions_are_kafkas_but_for_the_differences_in_the_table(tmp_path: Path) -> None:
    expected: dict[str, list[str]] = kept(cases.ANSWERS)
    assert expected.keys() > transactions.DIFFERENCES.keys()
    for name, (_, ours) in transactions.DIFFERENCES.items():
        for number, line in ours.items():
            assert expected[name][number] != line, "it is Kafka's"
            expected[name][number] = line
    found: dict[str, list[str]] = {}
    for name, settings, stories in (
        ("data", cases.SETTINGS, cases.STORIES),
        ("expiring", cases.EXPIRING_SETTINGS, cases.EXPIRING),
    ):
        with kafka_daemon(tmp_path / name, *settings) as running:
            found |= cases.answers(running.kafka_port, stories)
    assert found == expected


@pytest.mark.soak
@pytest.mark.parametrize(
    "of",
    [kafka_access_cases, kafka_admin_cases, kafka_group_cases, kafka_share_cases, cases, kafka_security_cases],
    ids=lambda of: of.__name__,
)
def test_the_answers_are_those_of_a_real_broker(of: ModuleType, tmp_path: Path) -> None:
    assert as_json(of.captured(tmp_path)) == kept(of.ANSWERS, KAFKA_VERSION)
