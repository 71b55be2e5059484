"""Memory for large requests as objects: taken before one is read, given back when it is served or begins to wait."""

import gc
from typing import Any

import pytest
from trio.testing import wait_all_tasks_blocked

from seglog_broker.runtime.request_memory import RequestMemory
from seglog_protocol.kafka import decoded_bytes_max, messages, write_request
from tests.unit.broker.listeners.kafka.kafka_peer import kafka


def joining(protocols: int, metadata: bytes = b"") -> messages.JoinGroupRequest:
    cls = messages.JoinGroupRequest
    named = [cls.JoinGroupRequestProtocol(name=f"{number}", metadata=metadata) for number in range(protocols)]
    return cls(group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=60_000, protocol_type="p", protocols=named)


def creating() -> messages.CreateTopicsRequest:
    return messages.CreateTopicsRequest(topics=[messages.CreateTopicsRequest.CreatableTopic() for _ in range(2_000)])


def producing() -> messages.ProduceRequest:
    cls = messages.ProduceRequest
    partitions = [cls.PartitionProduceData(index=each) for each in range(3_000)]
    return cls(acks=-1, topic_data=[cls.TopicProduceData(name="none", partition_data=partitions)])


def fetching() -> messages.FetchRequest:
    partitions = [messages.FetchRequest.FetchPartition(partition=each) for each in range(2_000)]
    return messages.FetchRequest(topics=[messages.FetchRequest.FetchTopic(topic="none", partitions=partitions)])


LARGE: dict[str, tuple[Any, type[Any], int]] = {
    "JoinGroup": (joining(3_000), messages.JoinGroupResponse, 3),
    "CreateTopics": (creating(), messages.CreateTopicsResponse, 2),
    "Fetch": (fetching(), messages.FetchResponse, 12),
    "Produce": (producing(), messages.ProduceResponse, 7),
}


@pytest.mark.parametrize("api", LARGE)
async def test_large_requests_are_read_one_after_the_other_where_memory_is_short_and_not_kept(api: str) -> None:
    request, response, version = LARGE[api]
    kinds = set(vars(type(request)).values())

    def objects() -> int:
        gc.collect()
        return sum(type(each) in kinds for each in gc.get_objects())

    of_the_test = objects()
    async with kafka() as served:
        memory = served.broker.decoded_memory = RequestMemory(
            decoded_bytes_max(sum(map(len, write_request(1, "", request, version))))
        )
        peers = [await served.connect() for _ in range(5)]
        for peer in peers:
            await peer.send(request, version)
        for peer in peers:
            await peer.receive(response)
        await wait_all_tasks_blocked()
        assert memory.waits
        assert (memory.used, objects()) == (0, of_the_test)


async def test_a_member_that_waits_for_others_holds_up_no_large_request() -> None:
    async with kafka("group.initial.rebalance.delay.ms=600000") as served:
        peer = await served.connect()
        await peer.send(joining(2, bytes(10_000)), 3)
        await wait_all_tasks_blocked()
        assert served.broker.groups.has("g")
        assert served.broker.decoded_memory.used == 0
