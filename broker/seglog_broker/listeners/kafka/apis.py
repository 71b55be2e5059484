"""The apis that the Kafka listener serves: their versions, and what serves them."""

import re
from collections.abc import Awaitable, Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple, cast

from seglog_broker.listeners.kafka import (
    cluster,
    configs,
    consumer_groups,
    coordinators,
    features,
    group_admin,
    group_offsets,
    groups,
    log_dirs,
    offsets,
    producer_ids,
    producers,
    quotas,
    replicas,
    security,
    topic_changes,
    topics,
)
from seglog_broker.listeners.kafka.door import Caller
from seglog_broker.runtime.response_memory import RESPONSE_BYTES_MAX
from seglog_protocol.errors import InvalidRequestError, SeglogError
from seglog_protocol.kafka import RequestHeader, UnsupportedVersion, messages
from seglog_protocol.kafka.definitions import has_field
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.kafka.structs import Response

AtOnce = Callable[[Caller, Any, int], Response | None]
"""Gives the response to a request of a version, None if that takes long: then it is served in a task."""

Serve = Callable[[Caller, Any, int], Awaitable[Response]]
"""As AtOnce, and may wait."""


Refuse = Callable[[Any, int, SeglogError], Response]
"""Gives the response with an error, to a request of a version that cannot wait any longer."""


class Api(NamedTuple):
    """One api: its name, the versions that are accepted, and the functions that serve it.

    With ``refuse``, ``serve`` may wait for minutes. It is cancelled when the peer leaves or the broker stops.
    """

    name: str
    versions: range
    at_once: AtOnce | None = None
    serve: Serve | None = None
    refuse: Refuse | None = None


PRODUCE_VERSION_ADVERTISED: Final = 0
"""Produce is offered from version 0 on, though only those from 3 on are accepted. librdkafka before 2.11.1 stops
compressing, without a word, where it finds no version 0 (KAFKA-18659, which Kafka 4 mends in the same way)."""


def api_versions(caller: Caller, request: messages.ApiVersionsRequest, version: int) -> messages.ApiVersionsResponse:
    """The apis and their versions."""
    del caller
    response = messages.ApiVersionsResponse(
        api_keys=[
            messages.ApiVersionsResponse.ApiVersion(
                api_key=key,
                min_version=PRODUCE_VERSION_ADVERTISED if key == _PRODUCE else api.versions.start,
                max_version=api.versions.stop - 1,
            )
            for key, api in APIS.items()
        ]
    )
    if version >= _CLIENT_NAME_VERSION_MIN and not cluster.is_client_name(
        request.client_software_name, request.client_software_version
    ):
        response.error_code = ErrorCode.INVALID_REQUEST
        response.api_keys = []
    else:
        features.add_features(response)
    return response


def unsupported_api_versions() -> messages.ApiVersionsResponse:
    """The answer to ApiVersions in an unknown version. It is written in version 0, which every client reads."""
    api = APIS[API_VERSIONS]
    return messages.ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        api_keys=[
            messages.ApiVersionsResponse.ApiVersion(
                api_key=API_VERSIONS, min_version=api.versions.start, max_version=api.versions.stop - 1
            )
        ],
    )


def too_large(response: Response, version: int) -> Response:
    """The response in place of one that takes more memory than a response may.

    Raises InvalidRequestError where there is no error for a whole response: there its parts are refused, one by one.
    """
    name = type(response).__name__
    if not has_field(name, "error_code", version):
        raise InvalidRequestError(f"the {name} would be larger than {RESPONSE_BYTES_MAX} bytes: ask for less")
    refusal: Any = type(response)()
    refusal.error_code = ErrorCode.INVALID_REQUEST
    return cast("Response", refusal)


@cache
def counter_name(api_name: str) -> str:
    """The name under which requests of an api are counted: ``kafka_list_offsets`` for ListOffsets."""
    return "kafka_" + re.sub(r"(?<=[a-z])(?=[A-Z])", "_", api_name).lower()


def accepted(header: RequestHeader) -> Api:
    """The api of a request. Raises UnsupportedVersion for one that is not served in this version."""
    api = APIS.get(header.api_key)
    if api is None or header.version not in api.versions:
        raise UnsupportedVersion(header.api_key, header.version, header.correlation_id)
    return api


API_VERSIONS: Final = 18
_PRODUCE: Final = 0
_CLIENT_NAME_VERSION_MIN: Final = 3

APIS: Final[Mapping[int, Api]] = MappingProxyType(
    {
        _PRODUCE: Api("Produce", range(3, 14)),
        1: Api("Fetch", range(4, 19)),
        2: Api("ListOffsets", range(1, 12), serve=offsets.list_offsets),
        3: Api("Metadata", range(14), serve=topics.metadata),
        8: Api("OffsetCommit", range(2, 11), serve=group_offsets.offset_commit),
        9: Api(
            "OffsetFetch", range(1, 11), at_once=group_offsets.offset_fetch, serve=group_offsets.offset_fetch_slowly
        ),
        10: Api(
            "FindCoordinator", range(7), at_once=coordinators.find_coordinator, serve=coordinators.find_coordinators
        ),
        11: Api("JoinGroup", range(10), serve=groups.join_group, refuse=groups.join_refused),
        12: Api("Heartbeat", range(5), at_once=groups.heartbeat),
        13: Api("LeaveGroup", range(6), serve=groups.leave_group),
        14: Api("SyncGroup", range(6), serve=groups.sync_group, refuse=groups.sync_refused),
        15: Api("DescribeGroups", range(7), serve=group_admin.describe_groups),
        16: Api("ListGroups", range(6), serve=group_admin.list_groups),
        API_VERSIONS: Api("ApiVersions", range(5), at_once=api_versions),
        19: Api("CreateTopics", range(2, 8), serve=topic_changes.create_topics),
        20: Api("DeleteTopics", range(1, 7), serve=topic_changes.delete_topics),
        21: Api("DeleteRecords", range(3), serve=offsets.delete_records),
        22: Api("InitProducerId", range(6), serve=producer_ids.init_producer_id),
        23: Api("OffsetForLeaderEpoch", range(2, 5), serve=offsets.offsets_for_leader_epoch),
        29: Api("DescribeAcls", range(1, 4), at_once=security.describe_acls),
        30: Api("CreateAcls", range(1, 4), at_once=security.create_acls),
        31: Api("DeleteAcls", range(1, 4), at_once=security.delete_acls),
        32: Api("DescribeConfigs", range(1, 5), serve=configs.describe_configs),
        33: Api("AlterConfigs", range(2), serve=configs.alter_configs),
        34: Api("AlterReplicaLogDirs", range(1, 3), serve=log_dirs.alter_replica_log_dirs),
        35: Api("DescribeLogDirs", range(1, 6), serve=log_dirs.describe_log_dirs),
        37: Api("CreatePartitions", range(4), serve=topic_changes.create_partitions),
        42: Api("DeleteGroups", range(3), serve=group_admin.delete_groups),
        43: Api("ElectLeaders", range(3), serve=replicas.elect_leaders),
        44: Api("IncrementalAlterConfigs", range(2), serve=configs.incremental_alter_configs),
        45: Api("AlterPartitionReassignments", range(2), serve=replicas.alter_partition_reassignments),
        46: Api("ListPartitionReassignments", range(1), at_once=replicas.list_partition_reassignments),
        47: Api("OffsetDelete", range(1), serve=group_offsets.offset_delete),
        48: Api("DescribeClientQuotas", range(2), at_once=quotas.describe_client_quotas),
        49: Api("AlterClientQuotas", range(2), serve=quotas.alter_client_quotas),
        50: Api("DescribeUserScramCredentials", range(1), serve=security.describe_users),
        51: Api("AlterUserScramCredentials", range(1), serve=security.alter_users),
        55: Api("DescribeQuorum", range(3), serve=replicas.describe_quorum),
        57: Api("UpdateFeatures", range(3), at_once=features.update_features),
        60: Api("DescribeCluster", range(3), at_once=cluster.describe_cluster),
        61: Api("DescribeProducers", range(1), serve=producers.describe_producers),
        65: Api("DescribeTransactions", range(1), serve=producers.describe_transactions),
        66: Api("ListTransactions", range(3), at_once=producers.list_transactions),
        68: Api("ConsumerGroupHeartbeat", range(2), serve=consumer_groups.consumer_group_heartbeat),
        69: Api("ConsumerGroupDescribe", range(2), serve=consumer_groups.consumer_group_describe),
        74: Api("ListConfigResources", range(2), serve=configs.list_config_resources),
        75: Api("DescribeTopicPartitions", range(1), serve=topics.describe_topic_partitions),
    }
)
"""By api key."""
