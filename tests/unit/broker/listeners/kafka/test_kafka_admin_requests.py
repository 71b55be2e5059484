"""Requests about administration that Kafka's answers do not show: limits, turns, settings, and a client library."""

import pytest

from seglog_broker.config.kafka_configs import ResourceType
from seglog_broker.listeners.kafka.handlers import configs, replicas, topic_changes
from seglog_broker.listeners.kafka.turns import PARTITION_COST, TOPIC_COST
from seglog_broker.runtime import budget
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.messages import AlterTopicRequest, DeleteTopicRequest
from tests.unit.broker.listeners.kafka.kafka_peer import TOPICS, KafkaPeer, KafkaServed, kafka

_Resource = messages.DescribeConfigsRequest.DescribeConfigsResource


def _create(*names: str, replicas: int = 1) -> messages.CreateTopicsRequest:
    return messages.CreateTopicsRequest(
        topics=[
            messages.CreateTopicsRequest.CreatableTopic(
                name=name, num_partitions=1, replication_factor=replicas, assignments=[], configs=[]
            )
            for name in names
        ]
    )


@pytest.mark.parametrize("documented", [False, True])
async def test_one_response_describes_a_bounded_amount_of_entries_each_resource_once(
    served: KafkaServed, peer: KafkaPeer, *, documented: bool
) -> None:
    served.broker.response_memory.response_bytes_max = 17_000 if documented else 5_600
    resources = [
        _Resource(resource_type=ResourceType.TOPIC, resource_name=name, configuration_keys=None)
        for name in [*TOPICS] * 1_000
    ]
    response = await peer.ask(messages.DescribeConfigsRequest(resources=resources, include_documentation=documented))
    codes = [result.error_code for result in response.results]
    described = codes.count(ErrorCode.NONE)
    assert described == (1 if documented else 3)
    assert codes[described:] == [ErrorCode.INVALID_REQUEST] * (4 - described), "each is described once"
    assert all(bool(result.configs) == (not result.error_code) for result in response.results)


async def test_of_one_resource_a_bounded_number_of_keys_is_altered(peer: KafkaPeer) -> None:
    cls = messages.IncrementalAlterConfigsRequest
    for count, why in ((configs.KEYS_MAX, "an unknown key"), (configs.KEYS_MAX + 1, "too many keys")):
        changes = [cls.AlterableConfig(name=f"unknown.{number}", value="70000") for number in range(count)]
        topic = cls.AlterConfigsResource(resource_type=ResourceType.TOPIC, resource_name="plain", configs=changes)
        [result] = (await peer.ask(cls(resources=[topic]))).responses
        is_too_much = result.error_message == "at most 1000 keys of a resource are altered"
        assert is_too_much == (why == "too many keys")
        assert result.error_code == (ErrorCode.INVALID_REQUEST if is_too_much else ErrorCode.INVALID_CONFIG)


async def test_one_request_alters_a_bounded_number_of_resources(served: KafkaServed, peer: KafkaPeer) -> None:
    change = messages.IncrementalAlterConfigsRequest.AlterableConfig(name="retention.ms", value="5")
    absent = [f"absent-{number}" for number in range(configs.RESOURCES_MAX - 2)]
    wanted = [
        messages.IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=ResourceType.TOPIC, resource_name=name, configs=[change]
        )
        for name in [*absent, *list(TOPICS)[:3]]
    ]
    response = await peer.ask(messages.IncrementalAlterConfigsRequest(resources=wanted))
    own = [topic.config.get("retention.ms") for topic in served.broker.directory.registry.topics.values()]
    assert [result.error_code for result in response.responses[-3:]] == [0, 0, ErrorCode.INVALID_REQUEST]
    assert own.count("5") == 2


async def test_one_request_makes_a_bounded_number_of_partitions(peer: KafkaPeer) -> None:
    most = topic_changes.PARTITIONS_MAX
    asked = _create("a", "b", "c")
    asked.validate_only = True  # nothing is made
    asked.topics[0].num_partitions = asked.topics[1].num_partitions = most // 2
    refused = await peer.ask(asked)
    del asked.topics[2]
    allowed = await peer.ask(asked)
    assert [topic.error_code for topic in refused.topics] == [ErrorCode.POLICY_VIOLATION] * 3
    assert [topic.error_code for topic in allowed.topics] == [0, 0]


async def test_other_replication_factors_are_taken_for_1_where_that_is_set() -> None:
    async with kafka("seglog.kafka.replication.factor.lenient=true") as served:
        peer = await served.connect()
        [made] = (await peer.ask(_create("three", replicas=3))).topics
        [refused] = (await peer.ask(_create("none", replicas=0))).topics
    assert (made.error_code, made.replication_factor) == (0, 1)
    assert refused.error_code == ErrorCode.INVALID_REPLICATION_FACTOR


async def test_metadata_is_of_what_topics_are_when_their_turn_comes(served: KafkaServed) -> None:
    enlarged = budget.items_of(PARTITION_COST)  # to describe them all takes a turn of its own
    changes = [DeleteTopicRequest("small"), AlterTopicRequest("keyed", partitions=enlarged)]  # the last one first

    async def turn() -> None:
        change = changes.pop() if changes else None
        if change is not None:
            await served.broker.answer(change)

    served.broker.turn = turn
    peer = await served.connect()
    absent = [f"absent-{number}" for number in range(budget.items_of(TOPIC_COST))]
    names = ["plain", *absent, "keyed", "small"]
    asked = [messages.MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    found = (await peer.ask(messages.MetadataRequest(topics=asked, allow_auto_topic_creation=False))).topics
    changes.append(DeleteTopicRequest("stamped"))
    rest = (await peer.ask(messages.MetadataRequest(topics=None))).topics
    described = {topic.name: (topic.error_code, len(topic.partitions)) for topic in found if topic.name in TOPICS}
    assert described == {"plain": (0, 3), "keyed": (0, enlarged), "small": (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0)}
    assert {topic.name for topic in rest} == {"plain", "keyed"}


async def test_sizes_are_those_of_the_logs_and_every_partition_is_there_once(
    served: KafkaServed, peer: KafkaPeer
) -> None:
    assert len(TOPICS) < replicas.PARTITIONS_A_TURN
    [directory] = (await peer.ask(messages.DescribeLogDirsRequest(topics=None))).results
    sizes = {(p.topic, p.number): p.log.size for p in served.broker.partitions.values()}
    found = {
        (topic.name, partition.partition_index): partition.partition_size
        for topic in directory.topics
        for partition in topic.partitions
    }
    assert found == sizes
    assert directory.total_bytes >= directory.usable_bytes >= 0
