"""Requests about groups, served as if they had come over the wire, by handlers in front of FakeGroups."""

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any, Final, cast

import trio

from seglog_broker.listeners.kafka import consumer_groups, coordinators, group_admin, group_offsets, groups
from seglog_broker.listeners.kafka.door import Caller, Endpoint
from seglog_broker.listeners.kafka.engine import KafkaEngine
from seglog_broker.listeners.kafka.topic_ids import id_bytes
from seglog_broker.runtime.response_memory import ResponseMemory
from seglog_broker.storage.directory.topic_registry import Topic, Topics
from seglog_protocol.kafka import (
    messages,
    read_request,
    read_request_header,
    read_response,
    write_request,
    write_response,
)
from seglog_protocol.kafka.structs import Request
from tests.broker.listeners.kafka.fake_groups import FakeGroups

TOPIC_IDS: Final = {"orders": "A" * 21 + "Q", "events": "B" * 21 + "A"}
PARTITIONS: Final = 2

ID_OF: Final = {name: id_bytes(topic_id) for name, topic_id in TOPIC_IDS.items()}

HANDLERS: Final[Mapping[type[Request], Callable[..., Any]]] = MappingProxyType(
    {
        messages.OffsetCommitRequest: group_offsets.offset_commit,
        messages.OffsetFetchRequest: group_offsets.offset_fetch,
        messages.FindCoordinatorRequest: coordinators.find_coordinator,
        messages.JoinGroupRequest: groups.join_group,
        messages.HeartbeatRequest: groups.heartbeat,
        messages.LeaveGroupRequest: groups.leave_group,
        messages.SyncGroupRequest: groups.sync_group,
        messages.DescribeGroupsRequest: group_admin.describe_groups,
        messages.ListGroupsRequest: group_admin.list_groups,
        messages.DeleteGroupsRequest: group_admin.delete_groups,
        messages.OffsetDeleteRequest: group_offsets.offset_delete,
        messages.ConsumerGroupHeartbeatRequest: consumer_groups.consumer_group_heartbeat,
        messages.ConsumerGroupDescribeRequest: consumer_groups.consumer_group_describe,
    }
)


def caller_of(groups: FakeGroups, client_id: str | None = "app") -> Caller:
    """A caller of a broker with two topics of two partitions."""
    topics = Topics({name: Topic(name, topic_id, PARTITIONS) for name, topic_id in TOPIC_IDS.items()})
    engine = SimpleNamespace(
        groups=groups,
        directory=SimpleNamespace(registry=SimpleNamespace(topics=topics)),
        turn=trio.lowlevel.checkpoint,
    )
    return Caller(cast("KafkaEngine", engine), Endpoint("here", 9092), client_id, "/192.0.2.7", ResponseMemory().room())


async def serve(
    groups: FakeGroups,
    request: Request,
    version: int,
    *,
    client_id: str | None = "app",
    handler: Callable[..., Any] | None = None,
) -> Any:
    """The response, as a client of this version reads it."""
    frame = memoryview(b"".join(write_request(1, client_id, request, version)))[4:]
    asked = read_request(read_request_header(frame), frame)
    answered = (handler or HANDLERS[type(request)])(caller_of(groups, client_id), asked, version)
    if inspect.isawaitable(answered):
        answered = await answered
    if answered is None and handler is None:
        assert isinstance(asked, messages.OffsetFetchRequest)
        answered = await group_offsets.offset_fetch_slowly(caller_of(groups, client_id), asked, version)
    assert answered is not None, "too much to be served at once"
    sent = memoryview(b"".join(bytes(chunk) for chunk in write_response(1, answered, version)))[4:]
    return read_response(request.API_KEY, version, sent)[1]
