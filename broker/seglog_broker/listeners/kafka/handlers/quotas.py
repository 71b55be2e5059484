"""Quotas of clients, described and altered.

DescribeClientQuotas, AlterClientQuotas
  1   flexible
"""

from collections.abc import Mapping
from typing import Any, Final

from seglog_broker.listeners.kafka.context import Api, Ask, RequestContext
from seglog_broker.listeners.kafka.errors import Failure, Refused, failure_of
from seglog_broker.listeners.kafka.turns import in_turns
from seglog_broker.runtime.response_memory import PART_BYTES
from seglog_protocol.access import Kind, Operation
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.quotas import IP, TYPES, Entity, check_entity, check_value, entity_in, parts_of

_MATCHES: Final = ("EXACT", "DEFAULT", "SPECIFIED")
_ANY: Final = object()
"""Where a filter wants a type with any name."""

_Described = messages.DescribeClientQuotasResponse


async def describe_client_quotas(
    context: RequestContext, request: messages.DescribeClientQuotasRequest
) -> messages.DescribeClientQuotasResponse:
    """The quotas of the entities that a filter lets through."""
    entries: list[_Described.EntryData] = []
    try:
        wanted = _wanted(request)
        async for entity, quotas in in_turns(context, context.broker.live_config.dynamic.clients.items()):
            if _fits(entity, wanted, is_strict=request.strict):
                context.reserve(2 * PART_BYTES)
                values = [_Described.ValueData(key=key, value=value) for key, value in quotas.items()]
                entries.append(_Described.EntryData(entity=parts_of(_Described.EntityData, entity), values=values))
    except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
        code, message = failure_of(error, "DescribeClientQuotas")
        return _Described(error_code=code, error_message=message, entries=None)
    return _Described(error_message="", entries=entries)


def _fits(entity: Entity, wanted: Mapping[str, object], *, is_strict: bool) -> bool:
    """True for an entity with all that is asked for; it has no other types, if that is strict."""
    has = dict(entity)
    if is_strict and len(has) != len(wanted):
        return False
    return all(kind in has and name in (_ANY, has[kind]) for kind, name in wanted.items())


def _wanted(request: messages.DescribeClientQuotasRequest) -> Mapping[str, object]:
    """Names by type that a filter asks for. Raises Refused, with Kafka's sentence, for one that Kafka refuses."""
    wanted: dict[str, object] = {}
    for component in request.components:
        kind, match, name = component.entity_type, component.match_type, component.match
        if not kind:
            raise _invalid("Invalid empty entity type.")
        if kind in wanted:
            raise _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in TYPES:
            raise Refused(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        if match not in range(len(_MATCHES)):
            raise _invalid(f"Unknown match type {match}")
        if (_MATCHES[match] == "EXACT") == (name is None):
            how = "set match string to null" if name is None else "also specified a match string"
            raise _invalid(f"Request specified MATCH_TYPE_{_MATCHES[match]}, but {how}.")
        wanted[kind] = _ANY if _MATCHES[match] == "SPECIFIED" else name
    if IP in wanted and len(wanted) > 1:
        raise _invalid(
            "Invalid entity filter component combination. IP filter component should not be used with user or clientId "
            "filter component."
        )
    return wanted


def _invalid(why: str) -> Refused:
    return Refused(ErrorCode.INVALID_REQUEST, why)


_Altered = messages.AlterClientQuotasResponse


async def alter_client_quotas(
    context: RequestContext, request: messages.AlterClientQuotasRequest
) -> messages.AlterClientQuotasResponse:
    """Quotas of several entities; those that are possible are altered together."""
    changes: dict[Entity, Mapping[str, float | None]] = {}
    failures: dict[Entity, Failure | None] = {}
    async for entry in in_turns(context, request.entries):
        entity = entity_in(entry.entity)
        try:
            changes[entity] = _checked(entity, entry.ops, is_twice=entity in failures)
            failures[entity] = None
        except ValueError as error:
            failures[entity] = _invalid(str(error)).failure
    try:
        by = context.session.principal
        await context.broker.configs.alter_clients(changes, by, validate_only=request.validate_only)
    except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
        failures |= dict.fromkeys(changes, failure_of(error, "AlterClientQuotas"))
    response = _Altered()
    async for altered, failure in in_turns(context, failures.items()):
        code, message = failure or (ErrorCode.NONE, None)
        parts = parts_of(_Altered.EntityData, altered)
        response.entries.append(_Altered.EntryData(error_code=code, error_message=message, entity=parts))
    return response


def _checked(entity: Entity, ops: list[Any], *, is_twice: bool) -> Mapping[str, float | None]:
    """The changes of one entity's quotas. Raises ValueError, with Kafka's sentence, where they are not possible."""
    changes = {op.key: None if op.remove else op.value for op in ops}
    if is_twice or len(changes) < len(ops):
        shown = ", ".join([f"{kind}={'null' if name is None else name}" for kind, name in entity])
        raise ValueError(f"Ignoring duplicate entity ClientQuotaEntity(entries={{{shown}}})")
    check_entity(entity)
    for key, value in changes.items():
        if value is not None:
            check_value(entity, key, value)
    return changes


_DESCRIBE: Final = Ask(Operation.DESCRIBE_CONFIGS)
_ALTER: Final = Operation.ALTER_CONFIGS, Kind.CLUSTER

APIS: Final = (
    Api(48, "DescribeClientQuotas", range(2), handle=describe_client_quotas, asks=_DESCRIBE, is_carried=True),
    Api(49, "AlterClientQuotas", range(2), handle=alter_client_quotas, needs=_ALTER, is_carried=True),
)
