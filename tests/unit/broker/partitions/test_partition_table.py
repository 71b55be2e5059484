"""The partitions in service."""

from itertools import chain

import pytest

from seglog_broker.partitions.partition_table import PART_MAX
from seglog_protocol import messages
from tests.unit.broker.brokers import open_broker


async def test_parts_are_kept_until_a_partition_comes_or_goes_and_stay_as_they_are() -> None:
    broker = open_broker()
    table = broker.partitions
    await broker.create_topic(messages.CreateTopicRequest("many", 2 * PART_MAX + 1))
    parts = table.in_parts()
    assert [len(part) for part in parts] == [PART_MAX, PART_MAX, 1]
    assert list(chain.from_iterable(parts)) == list(table.values())
    assert table.in_parts() is parts
    await broker.create_topic(messages.CreateTopicRequest("other", 1))
    assert sum(map(len, table.in_parts())) == len(table) == 2 * PART_MAX + 2
    await broker.delete_topic(messages.DeleteTopicRequest("many"))
    assert [partition.topic for partition in chain.from_iterable(table.in_parts())] == ["other"]
    assert sum(map(len, parts)) == 2 * PART_MAX + 1
    broker.close()


@pytest.mark.soak
async def test_problems_of_very_many_partitions_are_looked_for_in_turns() -> None:
    broker = open_broker()
    await broker.create_topic(messages.CreateTopicRequest("many", 20 * PART_MAX))
    broker.partitions["many", 20 * PART_MAX - 1].problems["flush"] = "it is slow"
    turns = 0

    async def turn() -> None:
        nonlocal turns
        turns += 1

    broker.turn = turn
    problems = await broker.find_problems()
    assert [each.sentence for each in problems if "it is slow" in each.sentence] == broker.hello(problems).problems
    assert turns >= 3
    broker.close()
