"""The apis that the Kafka listener serves, collected from the handlers, and ApiVersions, whose response lists them.

ApiVersions
  1   throttle time
  3   flexible; name and version of the client's software; features
  4   features whose lowest level is 0
  5   the cluster and node that the client means to reach, or neither
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, cast

from seglog_broker.listeners.kafka.context import Api, RequestContext
from seglog_broker.listeners.kafka.handlers import (
    acls,
    cluster,
    configs,
    fetch,
    group_admin,
    group_members,
    group_offsets,
    offsets,
    produce,
    quotas,
    replicas,
    sasl,
    share,
    share_offsets,
    topic_changes,
    topics,
    transactions,
)
from seglog_broker.runtime.response_memory import RESPONSE_BYTES_MAX
from seglog_protocol.errors import InvalidRequestError
from seglog_protocol.kafka import RequestHeader, UnsupportedVersion, messages
from seglog_protocol.kafka.definitions import has_field
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.kafka.frames import PRODUCE
from seglog_protocol.kafka.structs import Response

PRODUCE_VERSION_ADVERTISED: Final = 0
"""Produce is offered from version 0 on, though only those from 3 on are accepted. librdkafka before 2.11.1 stops
compressing, without a word, where it finds no version 0 (KAFKA-18659, which Kafka 4 mends in the same way)."""


def api_versions(context: RequestContext, request: messages.ApiVersionsRequest) -> messages.ApiVersionsResponse:
    """The apis and their versions."""
    response = messages.ApiVersionsResponse(
        api_keys=[
            messages.ApiVersionsResponse.ApiVersion(
                api_key=api.key,
                min_version=PRODUCE_VERSION_ADVERTISED if api.key == PRODUCE else api.versions.start,
                max_version=api.versions.stop - 1,
            )
            for api in APIS.values()
        ]
    )
    response.error_code = _refusal(context, request)
    if response.error_code:
        response.api_keys = []
    else:
        cluster.add_features(context, response)
    return response


def _refusal(context: RequestContext, request: messages.ApiVersionsRequest) -> ErrorCode:
    """Why the client is refused, or NONE.

    One that meant another cluster or node starts again from its bootstrap servers. Kafka does not look at that before a
    login, either.
    """
    if context.version >= 5 and (request.cluster_id is None) != (request.node_id == _NO_NODE):
        return ErrorCode.INVALID_REQUEST
    if context.version >= 3 and not cluster.is_client_name(
        request.client_software_name, request.client_software_version
    ):
        return ErrorCode.INVALID_REQUEST
    here = context.broker.directory.cluster_id, context.node_id
    if request.cluster_id is not None and context.session.is_open and (request.cluster_id, request.node_id) != here:
        return ErrorCode.REBOOTSTRAP_REQUIRED
    return ErrorCode.NONE


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


def accepted(apis: Mapping[int, Api], header: RequestHeader) -> Api:
    """The api of a request, among ``apis``. Raises UnsupportedVersion for one that is not served in this version."""
    api = apis.get(header.api_key)
    if api is None or header.version not in api.versions:
        raise UnsupportedVersion(header.api_key, header.version, header.correlation_id)
    return api


API_VERSIONS: Final = 18

_NO_NODE: Final = -1

_SERVED: Final = (
    Api(API_VERSIONS, "ApiVersions", range(6), api_versions),
    *acls.APIS,
    *cluster.APIS,
    *configs.APIS,
    *fetch.APIS,
    *group_admin.APIS,
    *group_members.APIS,
    *group_offsets.APIS,
    *offsets.APIS,
    *produce.APIS,
    *quotas.APIS,
    *replicas.APIS,
    *sasl.APIS,
    *share.APIS,
    *share_offsets.APIS,
    *topic_changes.APIS,
    *topics.APIS,
    *transactions.APIS,
)

APIS: Final[Mapping[int, Api]] = MappingProxyType({api.key: api for api in sorted(_SERVED)})
"""By api key, in their order."""
