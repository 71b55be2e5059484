"""Quotas of clients, described and altered.

DescribeClientQuotas, AlterClientQuotas
  1   flexible
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final

from seglog_broker.api.quotas import Changes, Filter
from seglog_broker.config.client_quotas import IP, TYPES, Entity, check_entity, check_value, entity_of
from seglog_broker.listeners.kafka.context import Api, Ask, RequestContext
from seglog_broker.listeners.kafka.errors import Failure, Refused, failure_of
from seglog_broker.listeners.kafka.turns import in_turns
from seglog_broker.runtime.response_memory import PART_BYTES
from seglog_protocol.access import Kind, Operation
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode


class _Match(IntEnum):
    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


_Described = messages.DescribeClientQuotasResponse


async def describe_client_quotas(
    context: RequestContext, request: messages.DescribeClientQuotasRequest
) -> messages.DescribeClientQuotasResponse:
    """The quotas of the entities that a filter lets through."""
    entries: list[_Described.EntryData] = []
    try:
        wanted = _filter(request)
        async for found in in_turns(context, context.broker.quotas.described(wanted)):
            if found is None:
                continue
            entity, quotas = found
            context.reserve(2 * PART_BYTES)
            entries.append(
                _Described.EntryData(
                    entity=[_Described.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
                    values=[_Described.ValueData(key=key, value=value) for key, value in quotas.items()],
                )
            )
    except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
        code, message = failure_of(error, "DescribeClientQuotas")
        return _Described(error_code=code, error_message=message, entries=None)
    return _Described(error_message="", entries=entries)


def _filter(request: messages.DescribeClientQuotasRequest) -> Filter:
    """The filter of a request. Raises Refused for a filter that Kafka refuses, with Kafka's sentence."""
    names: dict[str, str | None] = {}
    types: set[str] = set()
    for component in request.components:
        kind = component.entity_type
        if not kind:
            raise Refused(ErrorCode.INVALID_REQUEST, "Invalid empty entity type.")
        if kind in names or kind in types:
            raise Refused(ErrorCode.INVALID_REQUEST, f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in TYPES:
            raise Refused(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        match component.match_type, component.match:
            case (_Match.EXACT, None):
                why = "Request specified MATCH_TYPE_EXACT, but set match string to null."
            case (_Match.DEFAULT, str()):
                why = "Request specified MATCH_TYPE_DEFAULT, but also specified a match string."
            case (_Match.SPECIFIED, str()):
                why = "Request specified MATCH_TYPE_SPECIFIED, but also specified a match string."
            case (_Match.EXACT | _Match.DEFAULT, name):
                names[kind] = name
                continue
            case (_Match.SPECIFIED, _):
                types.add(kind)
                continue
            case _:
                why = f"Unknown match type {component.match_type}"
        raise Refused(ErrorCode.INVALID_REQUEST, why)
    if IP in (seen := names.keys() | types) and len(seen) > 1:
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            "Invalid entity filter component combination. IP filter component should not be used with user or clientId "
            "filter component.",
        )
    return Filter(names, frozenset(types), request.strict)


_Altered = messages.AlterClientQuotasResponse


async def alter_client_quotas(
    context: RequestContext, request: messages.AlterClientQuotasRequest
) -> messages.AlterClientQuotasResponse:
    """Quotas of several entities; those that are possible are altered together."""
    changes: dict[Entity, Changes] = {}
    failures: dict[Entity, Failure | None] = {}
    async for entry in in_turns(context, request.entries):
        names = {item.entity_type: item.entity_name for item in entry.entity}
        entity = entity_of(names)
        is_twice = entity in failures or len({op.key for op in entry.ops}) < len(entry.ops)
        failures.setdefault(entity, None)
        try:
            changes[entity] = _checked(names, entry.ops, is_twice=is_twice)
        except ValueError as error:
            failures[entity] = Refused(ErrorCode.INVALID_REQUEST, str(error)).failure
    try:
        by = context.session.principal
        refused = await context.broker.quotas.alter(changes, by, validate_only=request.validate_only)
        failures |= {entity: Failure(ErrorCode.POLICY_VIOLATION, why) for entity, why in refused.items()}
    except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
        failures |= dict.fromkeys(changes, failure_of(error, "AlterClientQuotas"))
    response = _Altered()
    async for altered, failure in in_turns(context, failures.items()):
        code, message = failure or (ErrorCode.NONE, None)
        shown_entity = [_Altered.EntityData(entity_type=kind, entity_name=name) for kind, name in altered]
        response.entries.append(_Altered.EntryData(error_code=code, error_message=message, entity=shown_entity))
    return response


def _checked(
    names: Mapping[str, str | None], ops: Sequence[messages.AlterClientQuotasRequest.OpData], *, is_twice: bool
) -> Changes:
    """The changes of one entity's quotas. Raises ValueError, with Kafka's sentence, where that is not possible."""
    entity = entity_of(names)
    if is_twice:
        shown = ", ".join([f"{kind}={'null' if name is None else name}" for kind, name in entity])
        raise ValueError(f"Ignoring duplicate entity ClientQuotaEntity(entries={{{shown}}})")
    check_entity(names)
    for op in ops:
        if not op.remove:
            check_value(entity, op.key, op.value)
    return {op.key: None if op.remove else op.value for op in ops}


_DESCRIBE: Final = Ask(Operation.DESCRIBE_CONFIGS)
_ALTER: Final = Operation.ALTER_CONFIGS, Kind.CLUSTER

APIS: Final = (
    Api(48, "DescribeClientQuotas", range(2), handle=describe_client_quotas, asks=_DESCRIBE, is_carried=True),
    Api(49, "AlterClientQuotas", range(2), handle=alter_client_quotas, needs=_ALTER, is_carried=True),
)
