"""The topic of committed offsets as clients see it: they read it, and alter some settings; the broker writes it."""

from typing import Any, Final

import pytest

from seglog_protocol.batch_builder import BatchBuilder
from seglog_protocol.errors import InvalidConfigError, InvalidRequestError, InvalidTopicError, TopicExistsError
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.messages import (
    AlterTopicRequest,
    AppendPartition,
    AppendRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    TruncatePartition,
    TruncateRequest,
)
from tests.logs import batch
from tests.support import each_case
from tests.unit.broker.listeners.kafka.kafka_peer import (
    KafkaPeer,
    KafkaServed,
    codes,
    fetch,
    found,
    kafka,
    produce,
    results,
)

OFFSETS: Final = "__consumer_offsets"
BATCH: Final = batch(b"value", key=b"key")
INVALID: Final = ErrorCode.INVALID_TOPIC_EXCEPTION
UNKNOWN: Final = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
OTHERS: Final = ("__transaction_state", "__share_group_state")


async def commit(peer: KafkaPeer) -> Any:
    """The first commit makes the topic."""
    cls = messages.OffsetCommitRequest
    partition = cls.OffsetCommitRequestPartition(partition_index=0, committed_offset=0)
    topics = [cls.OffsetCommitRequestTopic(name="plain", partitions=[partition])]
    [topic] = (await peer.ask(cls(group_id="g", topics=topics), 8)).topics
    return topic.partitions[0].error_code


@pytest.fixture
async def peer(served: KafkaServed) -> KafkaPeer:
    """A client that has committed an offset."""
    peer = await served.connect()
    assert await commit(peer) == 0
    return peer


async def metadata(peer: KafkaPeer, name: str, *, create: bool) -> Any:
    asked = [messages.MetadataRequest.MetadataRequestTopic(name=name)]
    return (await peer.ask(messages.MetadataRequest(topics=asked, allow_auto_topic_creation=create), 9)).topics[0]


async def created(peer: KafkaPeer, name: str, *, validate_only: bool = False) -> Any:
    cls = messages.CreateTopicsRequest
    topic = cls.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    return (await peer.ask(cls(topics=[topic], validate_only=validate_only), 7)).topics[0].error_code


@each_case(
    ("name", "code", "produced", "refusal", "is_internal"),
    [
        *[(name, INVALID, INVALID, InvalidTopicError, True) for name in (OFFSETS, *OTHERS)],
        ("__cluster_metadata", ErrorCode.INVALID_REQUEST, UNKNOWN, InvalidRequestError, False),
    ],
)
async def test_the_names_of_kafkas_own_topics_are_not_given_to_topics_of_clients(
    served: KafkaServed, name: str, code: int, produced: int, refusal: type[Exception], is_internal: bool
) -> None:
    peer = await served.connect()
    described = await metadata(peer, name, create=True)
    assert (described.error_code, described.is_internal) == (UNKNOWN, is_internal)
    assert [await created(peer, name, validate_only=only) for only in (False, True)] == [code] * 2
    assert results(await peer.ask(produce((name, 0, BATCH)), 9)) == [(produced, -1)]
    with pytest.raises(refusal, match=r"the broker's own|metadata log"):
        await served.broker.answer(CreateTopicRequest(name))
    refused = await served.broker.create_missing(AppendRequest([AppendPartition(name, 0, len(BATCH))], create=True))
    assert isinstance(refused[name], refusal)
    assert name not in served.broker.directory.registry.topics


async def test_it_is_shown_as_internal_and_can_be_read(peer: KafkaPeer) -> None:
    assert (await metadata(peer, OFFSETS, create=False)).is_internal
    assert not (await metadata(peer, "plain", create=False)).is_internal
    cls = messages.DescribeTopicPartitionsRequest
    described = await peer.ask(cls(topics=[cls.TopicRequest(name=name) for name in (OFFSETS, "plain")]), 0)
    assert {topic.name: topic.is_internal for topic in described.topics} == {OFFSETS: True, "plain": False}
    [(code, end, size)] = found(await peer.ask(fetch((OFFSETS, 0, 0)), 12))
    assert (code, end > 0, size > 0) == (0, True, True)


@each_case("acks", [1, -1])
@each_case("version", [3, 9, 13])
async def test_clients_do_not_write_to_it_and_what_is_beside_it_is_written(version: int, acks: int) -> None:
    async with kafka() as served:
        peer = await served.connect()
        assert await commit(peer) == 0
        end = served.broker.partitions[OFFSETS, 0].log.log_end_offset
        request = produce(("plain", 0, BATCH), (OFFSETS, 0, BATCH), ("plain", 1, BATCH), acks=acks, served=served)
        told = results(await peer.ask(request, version))
        assert sorted(told) == sorted([(0, 0), (0, 0), (INVALID, -1)])
        assert served.broker.partitions[OFFSETS, 0].log.log_end_offset == end
        assert await commit(peer) == 0
        assert served.broker.partitions[OFFSETS, 0].log.log_end_offset > end


async def test_neither_it_nor_its_records_are_deleted_and_its_partitions_stay_as_many(
    served: KafkaServed, peer: KafkaPeer
) -> None:
    with pytest.raises(InvalidTopicError, match="is not deleted"):
        await served.broker.answer(DeleteTopicRequest(OFFSETS))
    assert codes((await peer.ask(messages.DeleteTopicsRequest(topic_names=[OFFSETS]), 5)).responses) == [INVALID]
    cls = messages.DeleteRecordsRequest
    partition = cls.DeleteRecordsPartition(partition_index=0, offset=-1)
    told = await peer.ask(cls(topics=[cls.DeleteRecordsTopic(name=OFFSETS, partitions=[partition])]), 2)
    assert codes(told.topics[0].partitions) == [INVALID]
    enlarged = messages.CreatePartitionsRequest.CreatePartitionsTopic(name=OFFSETS, count=9, assignments=None)
    assert codes((await peer.ask(messages.CreatePartitionsRequest(topics=[enlarged]), 3)).results) == [INVALID]
    reply = await served.broker.truncate(TruncateRequest([TruncatePartition(OFFSETS, 0, None)]))
    assert isinstance(reply.partitions[0].error, InvalidTopicError)
    with pytest.raises(InvalidTopicError, match="stays"):
        await served.broker.answer(AlterTopicRequest(OFFSETS, partitions=9))
    assert await created(peer, OFFSETS) == ErrorCode.TOPIC_ALREADY_EXISTS
    with pytest.raises(TopicExistsError):
        await served.broker.answer(CreateTopicRequest(OFFSETS))


REFUSED: Final = [
    {"cleanup.policy": "delete"},
    {"cleanup.policy": "compact,delete"},
    {"max.message.bytes": "100"},
    {"segment.bytes": "1000"},
    {"message.timestamp.before.max.ms": "0"},
    {"message.timestamp.after.max.ms": "0"},
]


async def altered(peer: KafkaPeer, config: dict[str, str]) -> int:
    """The error code of an alteration that resets the settings that are not named."""
    cls = messages.AlterConfigsRequest
    entries = [cls.AlterableConfig(name=name, value=value) for name, value in config.items()]
    resource = cls.AlterConfigsResource(resource_type=2, resource_name=OFFSETS, configs=entries)
    return int((await peer.ask(cls(resources=[resource]), 1)).responses[0].error_code)


@each_case("config", REFUSED)
async def test_settings_under_which_it_would_lose_or_refuse_records_are_refused(
    served: KafkaServed, peer: KafkaPeer, config: dict[str, str]
) -> None:
    (key,) = config
    before = dict(served.broker.directory.registry.topics[OFFSETS].config)
    with pytest.raises(InvalidConfigError, match=key):
        await served.broker.answer(AlterTopicRequest(OFFSETS, config=dict(config)))
    assert await altered(peer, {"cleanup.policy": "compact"} | config) == ErrorCode.INVALID_CONFIG
    assert served.broker.directory.registry.topics[OFFSETS].config == before
    assert await commit(peer) == 0


async def test_it_stays_compacted_when_its_settings_are_reset_and_others_are_altered(
    served: KafkaServed, peer: KafkaPeer
) -> None:
    with pytest.raises(InvalidConfigError, match=r"cleanup\.policy"):
        await served.broker.answer(AlterTopicRequest(OFFSETS, reset=["cleanup.policy"]))
    assert await altered(peer, {"retention.ms": "1000"}) == ErrorCode.INVALID_CONFIG
    assert served.broker.partitions[OFFSETS, 0].log.config.cleanup_policy == ("compact",)
    await served.broker.answer(AlterTopicRequest(OFFSETS, config={"segment.bytes": "1048576"}))
    assert served.broker.partitions[OFFSETS, 0].log.config.segment_bytes == 1_048_576
    for config in (
        {"retention.ms": "1"},
        {"compression.type": "zstd"},
        {"message.timestamp.type": "LogAppendTime"},
    ):
        await served.broker.answer(AlterTopicRequest(OFFSETS, config=dict(config)))
        assert await commit(peer) == 0


async def test_no_transaction_covers_it_but_for_what_a_group_commits(served: KafkaServed, peer: KafkaPeer) -> None:
    transactions = served.broker.transactions
    producer = await transactions.init_producer("app", 60_000)
    made = BatchBuilder(producer_id=producer.producer_id, producer_epoch=0, base_sequence=0, transactional=True)
    made.append(0, b"key", b"value")
    request = produce((OFFSETS, 0, made.build()))
    request.transactional_id = "app"
    assert results(await peer.ask(request, 12)) == [(INVALID, -1)]
    with pytest.raises(InvalidTopicError, match="the broker's own"):
        await transactions.add_partitions("app", producer, [("plain", 0), (OFFSETS, 0)], version=2)
    assert not transactions.describe("app").facts.partitions
    await transactions.add_offsets("app", producer, "g", version=2)
    assert transactions.describe("app").facts.partitions == {OFFSETS: {0}}
