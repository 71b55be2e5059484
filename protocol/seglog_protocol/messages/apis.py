"""The requests there are, by api."""

from collections.abc import Mapping
from typing import Final

from seglog_protocol.messages.append import AppendRequest, FlushRequest, InitProducerRequest
from seglog_protocol.messages.base import Request
from seglog_protocol.messages.explain import ExplainRequest, ExplainSegmentsRequest
from seglog_protocol.messages.fetch import CancelRequest, FetchRequest
from seglog_protocol.messages.groups import (
    CommitOffsetsRequest,
    CommittedOffsetsRequest,
    DeleteGroupsRequest,
    DeleteOffsetsRequest,
    DescribeGroupRequest,
    GroupHeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    SyncGroupRequest,
)
from seglog_protocol.messages.hello import HelloRequest, MetricsRequest
from seglog_protocol.messages.offsets import LagRequest, OffsetsRequest, TruncateRequest
from seglog_protocol.messages.topics import AlterTopicRequest, CreateTopicRequest, DeleteTopicRequest, TopicsRequest

REQUESTS: Final[Mapping[str, type[Request]]] = {
    request.api: request
    for request in (
        HelloRequest,
        AppendRequest,
        FetchRequest,
        OffsetsRequest,
        TopicsRequest,
        CreateTopicRequest,
        AlterTopicRequest,
        DeleteTopicRequest,
        TruncateRequest,
        CancelRequest,
        ExplainRequest,
        ExplainSegmentsRequest,
        LagRequest,
        MetricsRequest,
        InitProducerRequest,
        FlushRequest,
        JoinGroupRequest,
        SyncGroupRequest,
        GroupHeartbeatRequest,
        LeaveGroupRequest,
        CommitOffsetsRequest,
        CommittedOffsetsRequest,
        ListGroupsRequest,
        DescribeGroupRequest,
        DeleteGroupsRequest,
        DeleteOffsetsRequest,
    )
}

API_VERSIONS: Final = {api: [1, request.version] for api, request in REQUESTS.items()}
