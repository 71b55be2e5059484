"""Random requests of every api and version that is offered, beside a real Kafka: answers differ only for a reason."""

import os
from pathlib import Path

import pytest

from seglog_broker.listeners.kafka.apis import APIS
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


def test_every_version_that_is_offered_is_among_the_requests() -> None:
    asked = {(each.case.api, each.case.version) for step in Requests(1).steps(20_000) for each in step}
    members = {"JoinGroup", "ConsumerGroupHeartbeat", "LeaveGroup"}
    offered = {(api.name, version) for api in APIS.values() for version in api.versions if api.name not in members}
    assert offered <= asked
    assert members <= {api for api, _ in asked}
    rebalances = [step for step in Requests(1).steps(2_000) if len(step) == 3]
    assert {step[0].case.api for step in rebalances} == {"JoinGroup", "SyncGroup"}
    assert list(Requests(5).steps(500)) == list(Requests(5).steps(500))
