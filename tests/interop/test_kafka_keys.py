"""The table of Kafka's keys and the answers about them are still what a real Kafka says."""

from pathlib import Path

import pytest

from tests.interop.kafka_cases import as_json, kept
from tests.interop.kafka_keys import ANSWERS, TABLE, answers, by_name, table
from tests.interop.peer import JUDGE, KAFKA_VERSION


@pytest.mark.skipif(KAFKA_VERSION != JUDGE, reason="the table is the judge's")
def test_the_table_is_what_kafkas_jars_say() -> None:
    assert table() == TABLE.read_text(encoding="utf-8"), "write it anew: python -m tests.interop.kafka_keys"


def test_the_answers_are_those_of_a_real_broker(tmp_path: Path) -> None:
    found, expected = by_name(as_json(answers(tmp_path))), kept(ANSWERS, KAFKA_VERSION, by_name)
    assert found.keys() == expected.keys()
    for name, answer in found.items():
        assert answer == expected[name], name
