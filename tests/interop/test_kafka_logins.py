"""Logins on Kafka listeners, step by step: a daemon's answers beside those of a real Kafka."""

from pathlib import Path

import pytest

from tests.interop.kafka_security_cases import ANSWERS, captured, written


@pytest.mark.slow
def test_the_answers_are_those_of_a_real_broker(tmp_path: Path) -> None:
    assert written(captured(tmp_path)) == ANSWERS.read_text(encoding="utf-8")
