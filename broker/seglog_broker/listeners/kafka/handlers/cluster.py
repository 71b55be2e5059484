"""The cluster of one node: DescribeCluster, DescribeQuorum, UpdateFeatures, and the features in ApiVersions.

Of Kafka's features ``metadata.version`` only means "as Kafka 4.3", or 4.4, to a client, ``group.version`` the groups of
KIP-848, ``share.version`` 2 share groups with dead letters, and ``transaction.version`` 2 transactions without
AddPartitionsToTxn. ``streams.version`` would switch clients to what seglog does not have, streams groups.

DescribeQuorum
  0   flexible
  1   when a replica fetched last
  2   error messages, nodes with their listeners, directories of replicas

UpdateFeatures
  0   flexible
  1   kind of upgrade, validation alone
  2   no results of single features

DescribeCluster
  0   flexible
  1   type of endpoint: brokers or controllers
  2   fenced brokers
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from seglog_broker.listeners.kafka.context import LEADER_EPOCH, Api, Ask, RequestContext
from seglog_broker.listeners.kafka.errors import MESSAGE_CHARACTERS_MAX
from seglog_broker.listeners.kafka.turns import in_turns
from seglog_broker.storage.directory.kafka_metadata import METADATA_VERSION, METADATA_VERSION_MAX
from seglog_protocol.access import CLUSTER, Kind, Operation
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode

AUTHORIZED_OPERATIONS_NOT_ASKED: Final = -2147483648

_CLIENT_NAME: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_BROKERS: Final = 1
_CONTROLLERS: Final = 2
_NO_CONTROLLER: Final = -1


def is_client_name(*names: str) -> bool:
    """True if Kafka accepts these as names and versions of client software."""
    return all(_CLIENT_NAME.fullmatch(name) is not None for name in names)


def authorized(context: RequestContext, kind: Kind, name: str = CLUSTER, *, asked: bool) -> int:
    """The operations that the client may do with a resource, if the request asked for them."""
    if asked and kind is Kind.CLUSTER and not context.session.sees(Operation.DESCRIBE, kind):
        return 0
    return context.session.operations(kind, name) if asked else AUTHORIZED_OPERATIONS_NOT_ASKED


def describe_cluster(
    context: RequestContext, request: messages.DescribeClusterRequest
) -> messages.DescribeClusterResponse:
    """The only node."""
    response = messages.DescribeClusterResponse(
        controller_id=_NO_CONTROLLER, cluster_authorized_operations=AUTHORIZED_OPERATIONS_NOT_ASKED
    )
    if request.endpoint_type == _CONTROLLERS:
        response.error_code = ErrorCode.MISMATCHED_ENDPOINT_TYPE
        response.error_message = (
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
        )
        return response
    if request.endpoint_type != _BROKERS:
        response.error_code = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        response.error_message = f"Unsupported endpoint type {request.endpoint_type}"
        return response
    response.cluster_id = context.broker.directory.cluster_id
    response.controller_id = context.node_id
    response.cluster_authorized_operations = authorized(
        context, Kind.CLUSTER, asked=request.include_cluster_authorized_operations
    )
    response.brokers = [
        messages.DescribeClusterResponse.DescribeClusterBroker(
            broker_id=context.node_id, host=context.advertised.host, port=context.advertised.port
        )
    ]
    return response


class Levels(NamedTuple):
    """The levels of a feature that a broker supports, and the one in force."""

    lowest: int
    highest: int
    in_force: int


METADATA_FEATURE: Final = "metadata.version"

FEATURES: Final[Mapping[str, Levels]] = MappingProxyType(
    {
        "group.version": Levels(0, 1, 1),
        METADATA_FEATURE: Levels(7, METADATA_VERSION_MAX, METADATA_VERSION),
        "share.version": Levels(0, 2, 2),
        "transaction.version": Levels(0, 2, 2),
    }
)
"""Kafka 4.4.0's; the metadata.version in force is that of the log directory, which may be later."""


_LEVEL_ZERO_VERSION_MIN: Final = 4


def _level(context: RequestContext, feature: str) -> int:
    """The level in force."""
    of_directory = feature == METADATA_FEATURE
    return context.broker.directory.registry.metadata_version if of_directory else FEATURES[feature].in_force


def add_features(context: RequestContext, response: messages.ApiVersionsResponse) -> None:
    """Add the features to a response to ApiVersions.

    Below version 4 clients (Java's from 3.3 to 3.7) refuse one with a supported feature whose lowest level is 0. They
    take all levels in force.
    """
    response.supported_features = [
        messages.ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=lowest, max_version=highest)
        for name, (lowest, highest, _) in FEATURES.items()
        if lowest > 0 or context.version >= _LEVEL_ZERO_VERSION_MIN
    ]
    response.finalized_features_epoch = context.broker.features_epoch
    response.finalized_features = [
        messages.ApiVersionsResponse.FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
        for name, level in [(name, _level(context, name)) for name in FEATURES]
    ]


def update_features(
    context: RequestContext, request: messages.UpdateFeaturesRequest
) -> messages.UpdateFeaturesResponse:
    """A feature stays as it is; every other level is refused, and with it the request."""
    response = messages.UpdateFeaturesResponse(error_message=None)
    updates = {update.feature: update for update in request.feature_updates}
    for update in updates.values():
        levels = FEATURES.get(update.feature)
        if levels is not None and update.max_version_level == _level(context, update.feature):
            continue
        why = f"Local controller {context.node_id} "
        if levels is None:
            why += "does not support this feature."
        elif not levels.lowest <= update.max_version_level <= levels.highest:
            why += f"only supports versions {levels.lowest}-{levels.highest}"
        else:
            why += f"has no other than {_level(context, update.feature)}."
        response.error_code = ErrorCode.INVALID_UPDATE_VERSION
        response.error_message = (
            "The update failed for all features since the following feature had an error: "
            f"Invalid update version {update.max_version_level} for feature "
            f"{update.feature[:MESSAGE_CHARACTERS_MAX]}. {why}"
        )
        return response
    if context.version < 2:
        response.results = [
            messages.UpdateFeaturesResponse.UpdatableFeatureResult(feature=update.feature, error_message=None)
            for update in updates.values()
        ]
    return response


METADATA_TOPIC: Final = "__cluster_metadata"
UNKNOWN_PARTITION: Final = "This server does not host this topic-partition."

_NO_DIRECTORY_ID: Final = bytes(16)

_Quorum = messages.DescribeQuorumResponse.PartitionData


async def describe_quorum(
    context: RequestContext, request: messages.DescribeQuorumRequest
) -> messages.DescribeQuorumResponse:
    """A quorum of this node alone. It keeps no log of metadata, so its offsets are 0."""
    now_ms = context.broker.clock.now_ms()
    response = messages.DescribeQuorumResponse(error_message="")
    for topic in request.topics:
        answered = messages.DescribeQuorumResponse.TopicData(topic_name=topic.topic_name, partitions=[])
        response.topics.append(answered)
        async for item in in_turns(context, topic.partitions):
            partition = _Quorum(partition_index=item.partition_index, error_message="")
            answered.partitions.append(partition)
            if (topic.topic_name, item.partition_index) != (METADATA_TOPIC, 0):
                partition.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                partition.error_message = UNKNOWN_PARTITION
                continue
            partition.leader_id = context.node_id
            partition.leader_epoch = LEADER_EPOCH
            partition.current_voters = [
                messages.DescribeQuorumResponse.ReplicaState(
                    replica_id=context.node_id,
                    replica_directory_id=_NO_DIRECTORY_ID,
                    last_fetch_timestamp=now_ms,
                    last_caught_up_timestamp=now_ms,
                )
            ]
            response.nodes = [
                messages.DescribeQuorumResponse.Node(
                    node_id=context.node_id,
                    listeners=[
                        messages.DescribeQuorumResponse.Listener(
                            name=context.listener_name, host=context.advertised.host, port=context.advertised.port
                        )
                    ],
                )
            ]
    return response


APIS: Final = (
    Api(55, "DescribeQuorum", range(3), handle=describe_quorum, asks=Ask(Operation.DESCRIBE)),
    Api(57, "UpdateFeatures", range(3), update_features, needs=(Operation.ALTER, Kind.CLUSTER)),
    Api(60, "DescribeCluster", range(3), describe_cluster),
)
