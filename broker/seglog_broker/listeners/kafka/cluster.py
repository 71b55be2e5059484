"""The cluster of one node, as clients are told of it."""

import re
from typing import Final

from seglog_broker.listeners.kafka.door import Caller
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode

AUTHORIZED_OPERATIONS_NOT_ASKED: Final = -2147483648

_CLIENT_NAME: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_BROKERS: Final = 1
_CONTROLLERS: Final = 2


def is_client_name(*names: str) -> bool:
    """Whether these are names and versions of client software, as Kafka has them."""
    return all(_CLIENT_NAME.fullmatch(name) is not None for name in names)


def describe_cluster(
    caller: Caller, request: messages.DescribeClusterRequest, version: int
) -> messages.DescribeClusterResponse:
    """The only node."""
    del version
    response = messages.DescribeClusterResponse(
        cluster_id=caller.engine.directory.cluster_id,
        controller_id=caller.node_id,
        cluster_authorized_operations=AUTHORIZED_OPERATIONS_NOT_ASKED,
        endpoint_type=request.endpoint_type,
    )
    if request.endpoint_type != _BROKERS:
        response.error_code = (
            ErrorCode.MISMATCHED_ENDPOINT_TYPE
            if request.endpoint_type == _CONTROLLERS
            else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        )
        response.error_message = "this is the endpoint of a broker"
        return response
    response.brokers = [
        messages.DescribeClusterResponse.DescribeClusterBroker(
            broker_id=caller.node_id, host=caller.endpoint.host, port=caller.endpoint.port
        )
    ]
    return response
