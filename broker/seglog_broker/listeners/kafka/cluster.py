"""The cluster of one node, as clients are told of it."""

import re
from typing import Final

from seglog_broker.listeners.kafka.door import Caller
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode

AUTHORIZED_OPERATIONS_NOT_ASKED: Final = -2147483648

_CLUSTER_OPERATIONS: Final = 8096
_TOPIC_OPERATIONS: Final = 3576
_GROUP_OPERATIONS: Final = 3400
"""Bits for all operations, which is what Kafka lets everyone do without an authorizer."""

_CLIENT_NAME: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_BROKERS: Final = 1
_CONTROLLERS: Final = 2
_NO_CONTROLLER: Final = -1


def is_client_name(*names: str) -> bool:
    """Whether these are names and versions of client software, as Kafka has them."""
    return all(_CLIENT_NAME.fullmatch(name) is not None for name in names)


def cluster_operations(*, asked: bool) -> int:
    """What a client may do with the cluster, if it asked for that."""
    return _CLUSTER_OPERATIONS if asked else AUTHORIZED_OPERATIONS_NOT_ASKED


def topic_operations(*, asked: bool) -> int:
    """What a client may do with a topic, if it asked for that."""
    return _TOPIC_OPERATIONS if asked else AUTHORIZED_OPERATIONS_NOT_ASKED


def group_operations(*, asked: bool) -> int:
    """What a client may do with a group, if it asked for that."""
    return _GROUP_OPERATIONS if asked else AUTHORIZED_OPERATIONS_NOT_ASKED


def describe_cluster(
    caller: Caller, request: messages.DescribeClusterRequest, version: int
) -> messages.DescribeClusterResponse:
    """The only node."""
    del version
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
    response.cluster_id = caller.engine.directory.cluster_id
    response.controller_id = caller.node_id
    response.cluster_authorized_operations = cluster_operations(asked=request.include_cluster_authorized_operations)
    response.brokers = [
        messages.DescribeClusterResponse.DescribeClusterBroker(
            broker_id=caller.node_id, host=caller.endpoint.host, port=caller.endpoint.port
        )
    ]
    return response
