"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources, answered by the broker.

DescribeConfigs
  1   source and synonyms in place of "is default"
  3   type and documentation
  4   flexible

AlterConfigs
  0   settings that are not named get their defaults
  2   flexible

IncrementalAlterConfigs
  1   flexible

ListConfigResources
  0   flexible; client metrics alone
  1   resources of all types
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from seglog_broker.config import join_address
from seglog_broker.config.kafka_configs import Alteration, ConfigEntry, Operation, ResourceType
from seglog_broker.listeners.kafka.context import Api, Ask, RequestContext
from seglog_broker.listeners.kafka.errors import Failure, failure_of
from seglog_broker.listeners.kafka.turns import in_turns
from seglog_broker.listeners.session import Need
from seglog_broker.runtime.response_memory import PART_BYTES
from seglog_protocol.access import CLUSTER, Kind
from seglog_protocol.access import Operation as Doing
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.error_codes import ErrorCode

ENTRY_BYTES: Final = 16
"""Bytes of an entry in a response, or of a synonym, beside its texts: entries are shared, so they take none before."""

RESOURCES_MAX: Final = 10_000
"""The most resources that one request alters."""

KEYS_MAX: Final = 1_000
"""The most keys of one resource that a request alters: there are not half as many."""

_KINDS: Final[Mapping[int, Kind]] = MappingProxyType({ResourceType.TOPIC: Kind.TOPIC, ResourceType.GROUP: Kind.GROUP})
"""The kinds of resources whose own rules are asked; for others those for the cluster are."""

_Described = messages.DescribeConfigsResponse.DescribeConfigsResult
_Entry = messages.DescribeConfigsResponse.DescribeConfigsResourceResult
_Synonym = messages.DescribeConfigsResponse.DescribeConfigsSynonym
_Resource = messages.ListConfigResourcesResponse.ConfigResource
_Replaced = messages.AlterConfigsResponse.AlterConfigsResourceResponse
_Changed = messages.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
_Config = messages.AlterConfigsRequest.AlterableConfig | messages.IncrementalAlterConfigsRequest.AlterableConfig
_AlteredT = TypeVar("_AlteredT", _Replaced, _Changed)


async def describe_configs(
    context: RequestContext, request: messages.DescribeConfigsRequest
) -> messages.DescribeConfigsResponse:
    """Keys of topics, brokers, loggers, groups and client metrics, each resource with its own result."""
    response = messages.DescribeConfigsResponse()
    entries = _Entries(synonyms=request.include_synonyms, documentation=request.include_documentation)
    seen: set[object] = set()
    for wanted in request.resources:
        keys = wanted.configuration_keys
        same = wanted.resource_type, wanted.resource_name, None if keys is None else frozenset(keys)
        if same in seen:
            continue
        seen.add(same)
        await context.turn()
        result = _Described(
            resource_type=wanted.resource_type, resource_name=wanted.resource_name, error_message="", configs=[]
        )
        response.results.append(result)
        try:
            _check(context, Doing.DESCRIBE_CONFIGS, wanted.resource_type, wanted.resource_name)
            context.reserve(PART_BYTES + 2 * len(wanted.resource_name))
            found = context.broker.configs.describe(
                wanted.resource_type, wanted.resource_name, keys, actual=_places(context)
            )
            made = [entries.of(entry) for entry in found]
            context.reserve(sum([entries.sizes[entry] for entry in found]))
        except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
            result.error_code, result.error_message = failure_of(error, "DescribeConfigs")
            continue
        result.configs = made
    return response


class _Entries:
    """Config entries on the wire. Topics share most entries: each is made once in a response."""

    def __init__(self, *, synonyms: bool, documentation: bool) -> None:
        self._synonyms = synonyms
        self._documentation = documentation
        self._made: dict[ConfigEntry, _Entry] = {}
        self.sizes: dict[ConfigEntry, int] = {}
        """Bytes of each in a response."""

    def of(self, entry: ConfigEntry) -> _Entry:
        made = self._made.get(entry)
        if made is None:
            made = self._made[entry] = _Entry(
                name=entry.name,
                value=entry.value,
                read_only=entry.is_read_only,
                config_source=entry.source,
                is_sensitive=entry.is_sensitive,
                synonyms=[
                    _Synonym(name=synonym.name, value=synonym.value, source=synonym.source)
                    for synonym in entry.synonyms
                ]
                if self._synonyms
                else [],
                config_type=entry.type,
                documentation=entry.documentation if self._documentation else None,
            )
            self.sizes[entry] = ENTRY_BYTES + sum(
                [len(text) for text in (made.name, made.value, made.documentation) if text is not None]
                + [ENTRY_BYTES + len(synonym.name) + len(synonym.value or "") for synonym in made.synonyms]
            )
        return made


def _check(context: RequestContext, operation: Doing, resource: int, name: str) -> None:
    """Raise AuthorizationError if the client may not do this with the configuration of a resource."""
    kind = _KINDS.get(resource, Kind.CLUSTER)
    context.check(operation, kind, CLUSTER if kind is Kind.CLUSTER else name)


def _places(context: RequestContext) -> dict[str, str]:
    """Values that the configuration does not have: the advertised listener of this client, where none is set."""
    if context.config.advertised_listeners:
        return {}
    return {"advertised.listeners": f"{context.listener_name}://{join_address(*context.advertised)}"}


async def list_config_resources(
    context: RequestContext, request: messages.ListConfigResourcesRequest
) -> messages.ListConfigResourcesResponse:
    """The resources of some types, of all if none are named; version 0 asks for client metrics only."""
    response = messages.ListConfigResourcesResponse()
    wanted = {ResourceType.CLIENT_METRICS} if context.version == 0 else set(request.resource_types or ResourceType)
    if not wanted <= frozenset(ResourceType):
        response.error_code = ErrorCode.UNSUPPORTED_VERSION
        return response
    if ResourceType.TOPIC in wanted:
        names = context.topics
        async for name in in_turns(context, list(names)):
            response.config_resources.append(_Resource(resource_name=name, resource_type=ResourceType.TOPIC))
    if ResourceType.GROUP in wanted:
        async for name in in_turns(context, list(context.broker.live_config.dynamic.groups)):
            response.config_resources.append(_Resource(resource_name=name, resource_type=ResourceType.GROUP))
    response.config_resources += [
        _Resource(resource_name=str(context.node_id), resource_type=kind)
        for kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER)
        if kind in wanted
    ]
    return response


async def alter_configs(
    context: RequestContext, request: messages.AlterConfigsRequest
) -> messages.AlterConfigsResponse:
    """Settings of resources are replaced: what is not named gets its default."""
    asked = [_Asked(item.resource_type, item.resource_name, item.configs) for item in request.resources]
    failures = await _alter(context, asked, "AlterConfigs", replaces=True, validate_only=request.validate_only)
    return messages.AlterConfigsResponse(responses=await _results(context, _Replaced, asked, failures))


async def incremental_alter_configs(
    context: RequestContext, request: messages.IncrementalAlterConfigsRequest
) -> messages.IncrementalAlterConfigsResponse:
    """Settings of resources are set, deleted, appended to, subtracted from; others stay."""
    asked = [_Asked(item.resource_type, item.resource_name, item.configs) for item in request.resources]
    failures = await _alter(
        context, asked, "IncrementalAlterConfigs", replaces=False, validate_only=request.validate_only
    )
    return messages.IncrementalAlterConfigsResponse(responses=await _results(context, _Changed, asked, failures))


class _Asked(NamedTuple):
    """The alterations of one resource."""

    resource: int
    name: str
    configs: Sequence[_Config]


async def _results(
    context: RequestContext, kind: type[_AlteredT], asked: Sequence[_Asked], failures: Sequence[Failure]
) -> list[_AlteredT]:
    """The results of all resources, as structs of ``kind``: each of the two apis has its own."""
    return [
        kind(
            error_code=failure.code, error_message=failure.message, resource_type=item.resource, resource_name=item.name
        )
        async for item, failure in in_turns(context, zip(asked, failures, strict=True))
    ]


async def _alter(
    context: RequestContext, asked: Sequence[_Asked], api: str, *, replaces: bool, validate_only: bool
) -> list[Failure]:
    """The outcome for each resource, in their order."""
    times = Counter((item.resource, item.name) for item in asked)
    failures: list[Failure] = []
    for number, item in enumerate(asked):
        await context.turn()
        if number >= RESOURCES_MAX:
            failures.append(Failure(ErrorCode.INVALID_REQUEST, f"one request alters at most {RESOURCES_MAX} resources"))
        elif times[item.resource, item.name] > 1:
            failures.append(Failure(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once."))
        elif len(item.configs) > KEYS_MAX:
            failures.append(Failure(ErrorCode.INVALID_REQUEST, f"at most {KEYS_MAX} keys of a resource are altered"))
        else:
            alterations = [
                Alteration(config.name, getattr(config, "config_operation", Operation.SET), config.value)
                for config in item.configs
            ]
            try:
                _check(context, Doing.ALTER_CONFIGS, item.resource, item.name)
                await context.broker.configs.alter(
                    item.resource,
                    item.name,
                    alterations,
                    replaces=replaces,
                    validate_only=validate_only,
                    administers=context.session.administers,
                )
            except Exception as error:  # noqa: BLE001 - answered, and logged where it is a bug
                failures.append(failure_of(error, api))
            else:
                failures.append(Failure(ErrorCode.NONE, None))
    return failures


def _changed(request: messages.AlterConfigsRequest | messages.IncrementalAlterConfigsRequest) -> Need:
    """The change of configurations of topics, else of groups, else of the broker's."""
    kinds = {resource.resource_type for resource in request.resources}
    kind = next((kind for resource, kind in _KINDS.items() if resource in kinds), Kind.CLUSTER)
    return Doing.ALTER_CONFIGS, kind


_DESCRIBE: Final = Ask(Doing.DESCRIBE_CONFIGS)

APIS: Final = (
    Api(32, "DescribeConfigs", range(1, 5), handle=describe_configs, is_carried=True),
    Api(33, "AlterConfigs", range(3), handle=alter_configs, needs=_changed, is_carried=True),
    Api(44, "IncrementalAlterConfigs", range(2), handle=incremental_alter_configs, needs=_changed, is_carried=True),
    Api(74, "ListConfigResources", range(2), None, list_config_resources, asks=_DESCRIBE, is_carried=True),
)
