"""What seglog does not have: client quotas, ACLs, and users with SCRAM. Answered as Kafka does where there are none."""

from collections import Counter
from enum import IntEnum
from typing import Final

from seglog_broker.listeners.kafka.context import Api, RequestContext
from seglog_broker.listeners.kafka.errors import MESSAGE_CHARACTERS_MAX, Refused
from seglog_broker.listeners.kafka.turns import in_turns
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode

USER: Final = "user"
CLIENT_ID: Final = "client-id"
ADDRESS: Final = "ip"
_TYPES: Final = (USER, CLIENT_ID, ADDRESS)

_RATES: Final = frozenset({"producer_byte_rate", "consumer_byte_rate"})
_KEYS: Final = _RATES | {"request_percentage", "controller_mutation_rate"}
_ADDRESS_KEYS: Final = frozenset({"connection_creation_rate"})

_Altered = messages.AlterClientQuotasResponse.EntryData


class _Match(IntEnum):
    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


def describe_client_quotas(
    context: RequestContext, request: messages.DescribeClientQuotasRequest
) -> messages.DescribeClientQuotasResponse:
    """No quotas; a filter that Kafka would refuse is refused."""
    del context
    try:
        _check_filter(request.components)
    except Refused as refused:
        code, message = refused.failure
        return messages.DescribeClientQuotasResponse(error_code=code, error_message=message, entries=None)
    return messages.DescribeClientQuotasResponse(error_message="", entries=[])


def _check_filter(components: list[messages.DescribeClientQuotasRequest.ComponentData]) -> None:
    seen: set[str] = set()
    for component in components:
        kind = component.entity_type
        if not kind:
            raise Refused(ErrorCode.INVALID_REQUEST, "Invalid empty entity type.")
        if kind in seen:
            raise Refused(ErrorCode.INVALID_REQUEST, f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in _TYPES:
            raise Refused(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        seen.add(kind)
        match component.match_type, component.match:
            case (_Match.EXACT, None):
                why = "Request specified MATCH_TYPE_EXACT, but set match string to null."
            case (_Match.DEFAULT, str()):
                why = "Request specified MATCH_TYPE_DEFAULT, but also specified a match string."
            case (_Match.SPECIFIED, str()):
                why = "Request specified MATCH_TYPE_SPECIFIED, but also specified a match string."
            case (_Match.EXACT | _Match.DEFAULT | _Match.SPECIFIED, _):
                continue
            case _:
                why = f"Unknown match type {component.match_type}"
        raise Refused(ErrorCode.INVALID_REQUEST, why)
    if ADDRESS in seen and len(seen) > 1:
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            "Invalid entity filter component combination. IP filter component should not be used with user or clientId "
            "filter component.",
        )


async def alter_client_quotas(
    context: RequestContext, request: messages.AlterClientQuotasRequest
) -> messages.AlterClientQuotasResponse:
    """Quotas that are not there can be removed; none can be set, because none would be kept to."""
    response = messages.AlterClientQuotasResponse()
    async for entry in in_turns(context, request.entries):
        result = _Altered(
            error_message=None,
            entity=[
                messages.AlterClientQuotasResponse.EntityData(
                    entity_type=item.entity_type, entity_name=item.entity_name
                )
                for item in entry.entity
            ],
        )
        response.entries.append(result)
        try:
            _check_alteration(entry)
        except Refused as refused:
            result.error_code, result.error_message = refused.failure
    return response


def _check_alteration(entry: messages.AlterClientQuotasRequest.EntryData) -> None:
    if not entry.entity:
        raise Refused(ErrorCode.INVALID_REQUEST, "Invalid empty client quota entity")
    for item in entry.entity:
        if item.entity_type not in _TYPES:
            raise Refused(ErrorCode.INVALID_REQUEST, f"Unhandled client quota entity type: {item.entity_type}")
        if item.entity_name == "":
            raise Refused(ErrorCode.INVALID_REQUEST, f"Empty {item.entity_type} not supported")
    keys = _ADDRESS_KEYS if any(item.entity_type == ADDRESS for item in entry.entity) else _KEYS
    for op in entry.ops:
        if op.key not in keys:
            raise Refused(ErrorCode.INVALID_REQUEST, f"Invalid configuration key {op.key}")
        if op.remove:
            continue
        if op.value <= 0:
            raise Refused(ErrorCode.INVALID_REQUEST, f"Quota {op.key} must be greater than 0")
        if op.key in _RATES and op.value % 1:
            raise Refused(ErrorCode.INVALID_REQUEST, f"{op.key} cannot be a fractional value.")
        raise Refused(ErrorCode.INVALID_REQUEST, f"{op.key} cannot be set: seglog has no quotas of clients")


NO_AUTHORIZER: Final = "No Authorizer is configured."
NO_AUTHORIZER_TO_DESCRIBE: Final = "No Authorizer is configured on the broker"
"""Kafka's own sentences: tools look at the code, people search for these."""

_User = messages.DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
_AlteredUser = messages.AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult


def describe_acls(context: RequestContext, request: messages.DescribeAclsRequest) -> messages.DescribeAclsResponse:
    """There are no ACLs."""
    del context, request
    return messages.DescribeAclsResponse(
        error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER_TO_DESCRIBE
    )


def create_acls(context: RequestContext, request: messages.CreateAclsRequest) -> messages.CreateAclsResponse:
    """None can be made."""
    del context
    result = messages.CreateAclsResponse.AclCreationResult(
        error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER
    )
    return messages.CreateAclsResponse(results=[result] * len(request.creations))


def delete_acls(context: RequestContext, request: messages.DeleteAclsRequest) -> messages.DeleteAclsResponse:
    """None can be deleted."""
    del context
    result = messages.DeleteAclsResponse.DeleteAclsFilterResult(
        error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER, matching_acls=[]
    )
    return messages.DeleteAclsResponse(filter_results=[result] * len(request.filters))


async def describe_users(
    context: RequestContext, request: messages.DescribeUserScramCredentialsRequest
) -> messages.DescribeUserScramCredentialsResponse:
    """There are no users with SCRAM credentials."""
    response = messages.DescribeUserScramCredentialsResponse(error_message="")
    counts = Counter(user.name for user in request.users or ())
    async for name, times in in_turns(context, counts.items()):
        code, why = ErrorCode.RESOURCE_NOT_FOUND, "Attempt to describe a user credential that does not exist"
        if times > 1:
            code = ErrorCode.DUPLICATE_RESOURCE
            why = "Cannot describe SCRAM credentials for the same user twice in a single request"
        response.results.append(
            _User(
                user=name, error_code=code, error_message=f"{why}: {name}"[:MESSAGE_CHARACTERS_MAX], credential_infos=[]
            )
        )
    return response


async def alter_users(
    context: RequestContext, request: messages.AlterUserScramCredentialsRequest
) -> messages.AlterUserScramCredentialsResponse:
    """None can be made: there is no SASL that they could be used with."""
    results: dict[str, _AlteredUser] = {}
    async for deletion in in_turns(context, request.deletions):
        results[deletion.name] = _AlteredUser(
            user=deletion.name,
            error_code=ErrorCode.RESOURCE_NOT_FOUND,
            error_message="Attempt to delete a user credential that does not exist",
        )
    async for upsertion in in_turns(context, request.upsertions):
        results[upsertion.name] = _AlteredUser(
            user=upsertion.name,
            error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            error_message="seglog has no SASL listener, so it keeps no SCRAM credentials",
        )
    return messages.AlterUserScramCredentialsResponse(results=list(results.values()))


APIS: Final = (
    Api(29, "DescribeAcls", range(1, 4), describe_acls),
    Api(30, "CreateAcls", range(1, 4), create_acls),
    Api(31, "DeleteAcls", range(1, 4), delete_acls),
    Api(48, "DescribeClientQuotas", range(2), describe_client_quotas),
    Api(49, "AlterClientQuotas", range(2), handle=alter_client_quotas),
    Api(50, "DescribeUserScramCredentials", range(1), handle=describe_users),
    Api(51, "AlterUserScramCredentials", range(1), handle=alter_users),
)
