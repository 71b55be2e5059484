"""Administration and groups, request by request: a broker's answers beside those of a real Kafka."""

import trio
from trio.testing import wait_all_tasks_blocked

from seglog_broker.storage.io.clock import SystemClock
from tests.interop import kafka_admin_cases, kafka_group_cases, kafka_share_cases
from tests.interop import kafka_admin_differences as admin
from tests.interop import kafka_group_differences as groups
from tests.interop.kafka_cases import kept, unexpected
from tests.unit.broker.listeners.kafka.kafka_peer import kafka


async def test_answers_about_administration_are_kafkas_but_for_the_differences_in_the_table() -> None:
    async with kafka(topics={}, clock=SystemClock()) as served:
        answered = await trio.to_thread.run_sync(lambda: list(kafka_admin_cases.answers(served.port, "/data")))
    compared = [(case, answer) for case, answer in answered if case.api != "ApiVersions" or answer["error_code"]]
    assert unexpected(compared, kept(kafka_admin_cases.ANSWERS), admin.DIFFERENCES, admin.differences) == []


async def test_answers_about_groups_are_kafkas_but_for_the_differences_in_the_table() -> None:
    async with kafka(*kafka_group_cases.SETTINGS, topics={}) as served:
        answered = await trio.to_thread.run_sync(lambda: list(kafka_group_cases.answers(served.port)))
    assert unexpected(answered, kept(kafka_group_cases.ANSWERS), groups.DIFFERENCES, groups.differences) == []


async def test_answers_about_share_groups_are_kafkas_but_for_the_differences_in_the_table() -> None:
    """Sentences of errors are each broker's own."""
    async with kafka(*kafka_share_cases.SETTINGS, topics={}) as served:
        answered = await trio.to_thread.run_sync(
            lambda: list(kafka_share_cases.answers(served.port, lambda: trio.from_thread.run(wait_all_tasks_blocked)))
        )
    assert unexpected(answered, kept(kafka_share_cases.ANSWERS), groups.OF_SHARE_GROUPS, groups.differences) == []


def test_every_case_has_an_answer_and_every_difference_a_case() -> None:
    for cases, known in (
        (kafka_admin_cases, admin.DIFFERENCES),
        (kafka_group_cases, groups.DIFFERENCES),
        (kafka_share_cases, groups.OF_SHARE_GROUPS),
    ):
        assert list(kept(cases.ANSWERS)) == [case.title for case in cases.CASES]
        assert kept(cases.ANSWERS).keys() > known.keys()
