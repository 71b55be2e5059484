"""DescribeClientQuotas and AlterClientQuotas: there are none, and none can be set."""

from enum import IntEnum
from typing import Final

from seglog_broker.listeners.kafka.door import Caller
from seglog_broker.listeners.kafka.errors import Refused
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
    caller: Caller, request: messages.DescribeClientQuotasRequest, version: int
) -> messages.DescribeClientQuotasResponse:
    """No quotas; a filter that Kafka would refuse is refused."""
    del caller, version
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
    caller: Caller, request: messages.AlterClientQuotasRequest, version: int
) -> messages.AlterClientQuotasResponse:
    """Quotas that are not there can be removed; none can be set, because none would be kept to."""
    del version
    response = messages.AlterClientQuotasResponse()
    async for entry in in_turns(caller, request.entries):
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
