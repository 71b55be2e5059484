"""The topic of committed offsets as clients see it: they read it, and alter some settings; the broker writes it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

import pytest

from seglog_broker.testing.forgetful import ForgetfulFileSystem
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
from tests.unit.broker.coordinators.groups.service.running import commit as commit_offset
from tests.unit.broker.coordinators.groups.service.running import committed, running, with_topic
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

pytestmark = pytest.mark.trio

OFFSETS: Final = "__consumer_offsets"
BATCH: Final = batch(b"value", key=b"key")
INVALID: Final = ErrorCode.INVALID_TOPIC_EXCEPTION


async def commit(peer: KafkaPeer) -> int:
    """The first commit makes the topic."""
    cls = messages.OffsetCommitRequest
    partition = cls.OffsetCommitRequestPartition(partition_index=0, committed_offset=0)
    topics = [cls.OffsetCommitRequestTopic(name="plain", partitions=[partition])]
    await peer.send(cls(group_id="g", topics=topics), 8)
    [topic] = (await peer.receive(messages.OffsetCommitResponse)).topics
    return topic.partitions[0].error_code


@asynccontextmanager
async def with_commits() -> AsyncIterator[tuple[KafkaServed, KafkaPeer]]:
    async with kafka() as served:
        peer = await served.connect()
        assert await commit(peer) == 0
        yield served, peer


async def metadata(peer: KafkaPeer, name: str, *, create: bool) -> Any:
    asked = [messages.MetadataRequest.MetadataRequestTopic(name=name)]
    await peer.send(messages.MetadataRequest(topics=asked, allow_auto_topic_creation=create), 9)
    return (await peer.receive(messages.MetadataResponse)).topics[0]


async def created(peer: KafkaPeer, name: str, *, validate_only: bool = False) -> int:
    cls = messages.CreateTopicsRequest
    topic = cls.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    await peer.send(cls(topics=[topic], validate_only=validate_only), 7)
    return (await peer.receive(messages.CreateTopicsResponse)).topics[0].error_code


async def test_it_is_not_made_by_clients(served: KafkaServed, peer: KafkaPeer) -> None:
    for name in (OFFSETS, "__transaction_state", "__share_group_state"):
        described = await metadata(peer, name, create=True)
        assert (described.error_code, described.is_internal) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, True)
        assert await created(peer, name) == INVALID
        assert await created(peer, name, validate_only=True) == INVALID
        await peer.send(produce((name, 0, BATCH)), 9)
        assert results(await peer.receive(messages.ProduceResponse)) == [(INVALID, -1)]
        with pytest.raises(InvalidTopicError, match="the broker's own"):
            await served.broker.answer(CreateTopicRequest(name))
        refused = await served.broker.create_missing(AppendRequest([AppendPartition(name, 0, len(BATCH))], create=True))
        assert isinstance(refused[name], InvalidTopicError)
        assert name not in served.broker.directory.registry.topics


async def test_the_name_of_kafkas_metadata_log_is_no_topics_name(served: KafkaServed, peer: KafkaPeer) -> None:
    name = "__cluster_metadata"
    described = await metadata(peer, name, create=True)
    assert (described.error_code, described.is_internal) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, False)
    assert await created(peer, name) == ErrorCode.INVALID_REQUEST
    assert await created(peer, name, validate_only=True) == ErrorCode.INVALID_REQUEST
    await peer.send(produce((name, 0, BATCH)), 9)
    assert results(await peer.receive(messages.ProduceResponse)) == [(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)]
    with pytest.raises(InvalidRequestError, match="metadata log"):
        await served.broker.answer(CreateTopicRequest(name))
    refused = await served.broker.create_missing(AppendRequest([AppendPartition(name, 0, len(BATCH))], create=True))
    assert isinstance(refused[name], InvalidRequestError)
    assert name not in served.broker.directory.registry.topics


async def test_it_is_shown_as_internal_and_can_be_read() -> None:
    async with with_commits() as (_, peer):
        assert (await metadata(peer, OFFSETS, create=False)).is_internal
        assert not (await metadata(peer, "plain", create=False)).is_internal
        cls = messages.DescribeTopicPartitionsRequest
        await peer.send(cls(topics=[cls.TopicRequest(name=name) for name in (OFFSETS, "plain")]), 0)
        described = await peer.receive(messages.DescribeTopicPartitionsResponse)
        assert {topic.name: topic.is_internal for topic in described.topics} == {OFFSETS: True, "plain": False}
        await peer.send(fetch((OFFSETS, 0, 0)), 12)
        [(code, end, size)] = found(await peer.receive(messages.FetchResponse))
        assert (code, end > 0, size > 0) == (0, True, True)


@each_case("acks", [1, -1])
@each_case("version", [3, 9, 13])
async def test_clients_do_not_write_to_it_and_what_is_beside_it_is_written(version: int, acks: int) -> None:
    async with with_commits() as (served, peer):
        end = served.broker.partitions[OFFSETS, 0].log.log_end_offset
        request = produce(("plain", 0, BATCH), (OFFSETS, 0, BATCH), ("plain", 1, BATCH), acks=acks, served=served)
        await peer.send(request, version)
        told = results(await peer.receive(messages.ProduceResponse))
        assert sorted(told) == sorted([(0, 0), (0, 0), (INVALID, -1)])
        assert served.broker.partitions[OFFSETS, 0].log.log_end_offset == end
        assert await commit(peer) == 0
        assert served.broker.partitions[OFFSETS, 0].log.log_end_offset > end


async def test_its_records_are_not_deleted_and_its_partitions_stay_as_many() -> None:
    async with with_commits() as (served, peer):
        cls = messages.DeleteRecordsRequest
        partition = cls.DeleteRecordsPartition(partition_index=0, offset=-1)
        await peer.send(cls(topics=[cls.DeleteRecordsTopic(name=OFFSETS, partitions=[partition])]), 2)
        told = await peer.receive(messages.DeleteRecordsResponse)
        assert codes(told.topics[0].partitions) == [INVALID]
        await peer.send(
            messages.CreatePartitionsRequest(
                topics=[messages.CreatePartitionsRequest.CreatePartitionsTopic(name=OFFSETS, count=9, assignments=None)]
            ),
            3,
        )
        assert codes((await peer.receive(messages.CreatePartitionsResponse)).results) == [INVALID]
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


async def altered(peer: KafkaPeer, config: dict[str, str], *, is_incremental: bool) -> int:
    """The error code of an alteration; the settings that are not named are reset by one that is not incremental."""
    answer: Any
    if is_incremental:
        incremental = messages.IncrementalAlterConfigsRequest
        entries = [incremental.AlterableConfig(name=name, value=value) for name, value in config.items()]
        resource = incremental.AlterConfigsResource(resource_type=2, resource_name=OFFSETS, configs=entries)
        await peer.send(incremental(resources=[resource]), 1)
        answer = await peer.receive(messages.IncrementalAlterConfigsResponse)
    else:
        cls = messages.AlterConfigsRequest
        whole = [cls.AlterableConfig(name=name, value=value) for name, value in config.items()]
        asked = cls.AlterConfigsResource(resource_type=2, resource_name=OFFSETS, configs=whole)
        await peer.send(cls(resources=[asked]), 1)
        answer = await peer.receive(messages.AlterConfigsResponse)
    return int(answer.responses[0].error_code)


@each_case("config", REFUSED)
async def test_settings_under_which_it_would_lose_or_refuse_records_are_refused(config: dict[str, str]) -> None:
    (key,) = config
    async with with_commits() as (served, peer):
        before = dict(served.broker.directory.registry.topics[OFFSETS].config)
        with pytest.raises(InvalidConfigError, match=key):
            await served.broker.answer(AlterTopicRequest(OFFSETS, config=dict(config)))
        assert await altered(peer, config, is_incremental=True) == ErrorCode.INVALID_CONFIG
        assert await altered(peer, {"cleanup.policy": "compact"} | config, is_incremental=False) == (
            ErrorCode.INVALID_CONFIG
        )
        assert served.broker.directory.registry.topics[OFFSETS].config == before
        assert await commit(peer) == 0


async def test_it_stays_compacted_when_its_settings_are_reset() -> None:
    async with with_commits() as (served, peer):
        with pytest.raises(InvalidConfigError, match=r"cleanup\.policy"):
            await served.broker.answer(AlterTopicRequest(OFFSETS, reset=["cleanup.policy"]))
        assert await altered(peer, {"retention.ms": "1000"}, is_incremental=False) == ErrorCode.INVALID_CONFIG
        assert served.broker.partitions[OFFSETS, 0].log.config.cleanup_policy == ("compact",)


async def test_other_settings_are_altered() -> None:
    async with with_commits() as (served, peer):
        await served.broker.answer(AlterTopicRequest(OFFSETS, config={"segment.bytes": "1048576"}))
        assert served.broker.partitions[OFFSETS, 0].log.config.segment_bytes == 1_048_576
        for config in (
            {"retention.ms": "1"},
            {"compression.type": "zstd"},
            {"message.timestamp.type": "LogAppendTime"},
        ):
            assert await altered(peer, config, is_incremental=True) == 0
            assert await commit(peer) == 0


async def test_no_transaction_covers_it_but_for_what_a_group_commits() -> None:
    async with with_commits() as (served, peer):
        transactions = served.broker.transactions
        producer = await transactions.init_producer("app", 60_000)
        made = BatchBuilder(producer_id=producer.producer_id, producer_epoch=0, base_sequence=0, transactional=True)
        made.append(0, b"key", b"value")
        request = produce((OFFSETS, 0, made.build()))
        request.transactional_id = "app"
        await peer.send(request, 12)
        assert results(await peer.receive(messages.ProduceResponse)) == [(INVALID, -1)]
        with pytest.raises(InvalidTopicError, match="the broker's own"):
            await transactions.add_partitions("app", producer, [("plain", 0), (OFFSETS, 0)], version=2)
        assert not transactions.describe("app").facts.partitions
        await transactions.add_offsets("app", producer, "g", version=2)
        assert transactions.describe("app").facts.partitions == {OFFSETS: {0}}


async def test_it_is_not_deleted() -> None:
    async with with_commits() as (served, peer):
        with pytest.raises(InvalidTopicError, match="is not deleted"):
            await served.broker.answer(DeleteTopicRequest(OFFSETS))
        await peer.send(messages.DeleteTopicsRequest(topic_names=[OFFSETS]), 5)
        assert codes((await peer.receive(messages.DeleteTopicsResponse)).responses) == [INVALID]
        assert await commit(peer) == 0


async def test_settings_that_an_older_version_let_be_altered_are_corrected_at_the_start() -> None:
    fs = ForgetfulFileSystem()
    async with running(fs) as broker:
        await with_topic(broker)
        await commit_offset(broker, "g", 5)
        registry = broker.directory.registry
        altered = {"cleanup.policy": "delete", "max.message.bytes": "100", "retention.ms": "1000"}
        registry.topics[OFFSETS] = replace(registry.topics[OFFSETS], config=altered)
        registry.save()
    async with running(fs) as broker:
        (problem,) = broker.hello().problems
        assert "cleanup.policy=compact" in problem
        config = broker.partitions[OFFSETS, 0].log.config
        assert (config.cleanup_policy, config.max_message_bytes, config.retention_ms) == (("compact",), 1_048_588, 1000)
        await commit_offset(broker, "g", 6)
    async with running(fs) as broker:
        assert broker.hello().problems == []
        assert committed(broker, "g") == 6
