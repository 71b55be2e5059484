"""Random requests of every api and version that is offered, beside a real Kafka: answers differ only for a reason."""

import os
from pathlib import Path

import pytest

from tests.interop.kafka_random import Requests
from tests.interop.kafka_random_cases import compared, kafka_side, kept, our_side
from tests.support import soak_seed

REQUESTS = int(os.environ.get("SEGLOG_RANDOM_REQUESTS") or 4_000)
"""A minute's worth."""

SHOWN = 20
"""Differences that are printed."""


def test_answers_are_those_that_kafka_gave(tmp_path: Path) -> None:
    with our_side(tmp_path) as ours:
        different = list(compared(ours, kept()))
    assert not different, "\n".join(different[:SHOWN])


@pytest.mark.timeout(1800)
def test_a_kafka_beside_answers_alike(tmp_path: Path) -> None:
    seed = soak_seed()
    with kafka_side(tmp_path) as kafka, our_side(tmp_path) as ours:
        asked = ((step, kafka.answers(step)) for step in Requests(seed, kafka.newest()).steps(REQUESTS))
        different = list(compared(ours, asked))
    assert not different, "\n".join((f"SEGLOG_SOAK_SEED={seed}, {len(different)} differ:", *different[:SHOWN]))
