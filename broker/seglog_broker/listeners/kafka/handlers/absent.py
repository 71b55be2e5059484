"""What seglog does not have: client quotas, ACLs and delegation tokens. Answered as Kafka does where there are none.

DescribeAcls, CreateAcls, DeleteAcls
  1   pattern type
  2   flexible
  3   resources of type user

DescribeClientQuotas, AlterClientQuotas
  1   flexible

CreateDelegationToken, DescribeDelegationToken
  2   flexible
  3   owner, and who asked for it

RenewDelegationToken, ExpireDelegationToken
  2   flexible
"""

from enum import IntEnum
from typing import Final

from seglog_broker.listeners.kafka.context import Api, RequestContext
from seglog_broker.listeners.kafka.errors import Refused
from seglog_broker.listeners.kafka.turns import in_turns
from seglog_broker.listeners.session import Administration
from seglog_broker.security.principals import ANONYMOUS
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode

# Kafka's own sentences: tools look at the code, people search for these.
_NO_ACLS: Final = messages.DescribeAclsResponse(
    error_code=ErrorCode.SECURITY_DISABLED, error_message="No Authorizer is configured on the broker"
)
_NOT_CREATED: Final = messages.CreateAclsResponse.AclCreationResult(
    error_code=ErrorCode.SECURITY_DISABLED, error_message="No Authorizer is configured."
)
_NOT_DELETED: Final = messages.DeleteAclsResponse.DeleteAclsFilterResult(
    error_code=ErrorCode.SECURITY_DISABLED, error_message="No Authorizer is configured.", matching_acls=[]
)


# --- Quotas -----------------------------------------------------------------------------------------------------------

_TYPES: Final = ("user", "client-id", "ip")
_RATES: Final = frozenset({"producer_byte_rate", "consumer_byte_rate"})
_KEYS: Final = _RATES | {"request_percentage", "controller_mutation_rate"}
_ADDRESS_KEYS: Final = frozenset({"connection_creation_rate"})


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
    """Raise Refused for a filter of quotas that Kafka refuses, with Kafka's sentence."""
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
    if "ip" in seen and len(seen) > 1:
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            "Invalid entity filter component combination. IP filter component should not be used with user or clientId "
            "filter component.",
        )


async def alter_client_quotas(
    context: RequestContext, request: messages.AlterClientQuotasRequest
) -> messages.AlterClientQuotasResponse:
    """Absent quotas can be removed; none can be set, because it would not be enforced."""
    cls = messages.AlterClientQuotasResponse
    response = cls()
    async for entry in in_turns(context, request.entries):
        result = cls.EntryData(
            error_message=None,
            entity=[
                cls.EntityData(entity_type=item.entity_type, entity_name=item.entity_name) for item in entry.entity
            ],
        )
        response.entries.append(result)
        why = _why_not_altered(entry)
        if why is not None:
            result.error_code, result.error_message = Refused(ErrorCode.INVALID_REQUEST, why).failure
    return response


def _why_not_altered(entry: messages.AlterClientQuotasRequest.EntryData) -> str | None:
    if not entry.entity:
        return "Invalid empty client quota entity"
    for item in entry.entity:
        if item.entity_type not in _TYPES:
            return f"Unhandled client quota entity type: {item.entity_type}"
        if item.entity_name == "":
            return f"Empty {item.entity_type} not supported"
    keys = _ADDRESS_KEYS if any(item.entity_type == "ip" for item in entry.entity) else _KEYS
    for op in entry.ops:
        if op.key not in keys:
            return f"Invalid configuration key {op.key}"
        if op.remove:
            continue
        if op.value <= 0:
            return f"Quota {op.key} must be greater than 0"
        if op.key in _RATES and op.value % 1:
            return f"{op.key} cannot be a fractional value."
        return f"{op.key} cannot be set: seglog has no quotas of clients"
    return None


# --- Delegation tokens ------------------------------------------------------------------------------------------------

_NEVER: Final = -1


def _why_no_token(context: RequestContext) -> ErrorCode:
    """Kafka's error for whoever may have no token, or its error where the configuration has no secret for them."""
    if context.session.principal == ANONYMOUS:
        return ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    return ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED


def create_token(
    context: RequestContext, request: messages.CreateDelegationTokenRequest
) -> messages.CreateDelegationTokenResponse:
    """No token, for the owner that was asked for, or for who asks."""
    kind, _, name = context.session.principal.partition(":")
    owner_kind, owner = kind, name
    if request.owner_principal_name and request.owner_principal_type is not None:
        owner_kind, owner = request.owner_principal_type, request.owner_principal_name
    return messages.CreateDelegationTokenResponse(
        error_code=_why_no_token(context),
        principal_type=owner_kind,
        principal_name=owner,
        token_requester_principal_type=kind,
        token_requester_principal_name=name,
        issue_timestamp_ms=_NEVER,
        expiry_timestamp_ms=_NEVER,
        max_timestamp_ms=_NEVER,
    )


APIS: Final = (
    Api(38, "CreateDelegationToken", range(1, 4), create_token),
    Api(
        39,
        "RenewDelegationToken",
        range(1, 3),
        lambda c, _: messages.RenewDelegationTokenResponse(error_code=_why_no_token(c), expiry_timestamp_ms=_NEVER),
    ),
    Api(
        40,
        "ExpireDelegationToken",
        range(1, 3),
        lambda c, _: messages.ExpireDelegationTokenResponse(error_code=_why_no_token(c), expiry_timestamp_ms=_NEVER),
    ),
    Api(
        41,
        "DescribeDelegationToken",
        range(1, 4),
        lambda c, _: messages.DescribeDelegationTokenResponse(error_code=_why_no_token(c)),
    ),
    Api(29, "DescribeAcls", range(1, 4), lambda *_: _NO_ACLS),
    Api(
        30,
        "CreateAcls",
        range(1, 4),
        lambda _, r: messages.CreateAclsResponse(results=[_NOT_CREATED] * len(r.creations)),
        changes=Administration.BROKER,
    ),
    Api(
        31,
        "DeleteAcls",
        range(1, 4),
        lambda _, r: messages.DeleteAclsResponse(filter_results=[_NOT_DELETED] * len(r.filters)),
        changes=Administration.BROKER,
    ),
    Api(48, "DescribeClientQuotas", range(2), describe_client_quotas),
    Api(49, "AlterClientQuotas", range(2), handle=alter_client_quotas, changes=Administration.BROKER),
)
