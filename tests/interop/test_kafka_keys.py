"""The table of Kafka's keys and the answers about them are still what a real Kafka says."""

import json
from pathlib import Path

import pytest

from tests.interop.kafka_keys import ANSWERS, TABLE, answers, table, written

pytestmark = pytest.mark.slow


def test_the_table_is_what_kafkas_jars_say() -> None:
    assert table() == TABLE.read_text(encoding="utf-8"), "write it anew: python -m tests.interop.kafka_keys"


def test_the_answers_are_those_of_a_real_broker(tmp_path: Path) -> None:
    found = json.loads(written(answers(tmp_path)))
    kept = json.loads(ANSWERS.read_text(encoding="utf-8"))
    assert found.keys() == kept.keys()
    for name, answer in found.items():
        assert answer == kept[name], name
