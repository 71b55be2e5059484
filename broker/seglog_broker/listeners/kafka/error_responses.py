"""Errors in responses of Kafka's wire: the response to a request that fails as a whole, and the codes in others.

The error stands where Kafka's own ``getErrorResponse`` of the request puts it: in the ``error_code`` of the response
where the version has one, else with each thing that the request names: a partition, a topic, a group, a key.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, Final, cast

from seglog_protocol.kafka.definitions import Field, StructDefinition, apis, definition
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.kafka.structs import Request, Response, Struct, message_class, struct_classes
from seglog_protocol.steps import Steps, finished

ITEMS_A_STEP: Final = 100
"""Things with an error each that are put into a response in one step, which takes a millisecond."""

_ASKED: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "coordinators": ("coordinator_keys",),
        "filter_results": ("filters",),
        "groups": ("groups", "group_ids"),
        "partition_responses": ("partition_data",),
        "partition_result": ("partitions",),
        "partitions": ("partitions", "partition_indexes"),
        "replica_election_results": ("topic_partitions",),
        "results_by_partition": ("partitions",),
        "results_by_topic_v3_and_below": ("v3_and_below_topics",),
        "responses": ("topic_data", "topics", "topic_names", "resources"),
        "results": ("creations", "resources", "topics", "groups_names"),
        "transaction_states": ("transactional_ids",),
    }
)
"""Arrays of responses, and those of requests that they answer; others have the same name in both."""

_ASKED_ELSEWHERE: Final[Mapping[str, Callable[[Any], Iterable[Any]]]] = MappingProxyType(
    {
        "AlterReplicaLogDirs": lambda request: [topic for folder in request.dirs for topic in folder.topics],
        "AlterUserScramCredentials": lambda request: dict.fromkeys(
            item.name for item in (*request.deletions, *request.upsertions)
        ),
        "DescribeUserScramCredentials": lambda request: [""] * len(request.users or ()),
        "DescribeLogDirs": lambda _request: [""],  # it names no directory
    }
)
"""What the requests of these apis name, as the only array of their responses has it."""

_KEYS: Final = frozenset(
    {
        "entity_name", "entity_type", "group_id", "index", "key", "log_dir", "name", "partition", "partition_id",
        "partition_index", "producer_id", "resource_name", "resource_type", "topic", "topic_id", "topic_name",
        "transactional_id", "user",
    }
)  # fmt: skip
"""Fields of the structs in these arrays that say which thing it is."""

_ERRORS: Final = frozenset({"error_code", "partition_error_code"})

_ASKED_KEYS: Final[Mapping[str, str]] = MappingProxyType({"partition_index": "partition", "topic_name": "name"})
"""Other names that they have in some requests."""

_PARTS_OF_KEYS: Final = frozenset({"entity"})
"""Arrays of structs that say which thing it is."""

_UNKNOWN: Final = frozenset(
    {
        "base_offset", "committed_offset", "expiry_timestamp_ms", "high_watermark", "issue_timestamp_ms",
        "low_watermark", "max_timestamp_ms", "node_id", "port", "producer_epoch", "producer_id",
    }
)  # fmt: skip
"""Fields that are -1 beside an error, and 0 where nothing is said."""

_ALSO_EACH: Final[Mapping[str, range]] = MappingProxyType(
    {
        "AlterPartitionReassignments": range(2),
        "ElectLeaders": range(3),
        "DescribeUserScramCredentials": range(1),
        "Fetch": range(13),  # clients of before know no error of the whole
        "Metadata": range(14),
    }
)
"""Versions with an error for the whole that have it with each thing, too."""


def error_response(request: Request, version: int, error: ErrorCode, message: str | None) -> Response:
    """The response that answers a request of this version with ``error``; ``message`` where there is room for it.

    A request that names nothing gets a response without an error where the version has none for the whole; so it is in
    Kafka. Raises LookupError for an api whose responses have no place for an error.
    """
    return finished(error_response_in_steps(request, version, error, message))


def error_response_in_steps(request: Request, version: int, error: ErrorCode, message: str | None) -> Steps[Response]:
    """The same in steps: a request may name tens of thousands of things."""
    return _Failure(apis()[request.API_KEY].response, version, error, message).response(request)


class _Failure:
    """An error in the response ``name`` of one version."""

    def __init__(self, name: str, version: int, error: ErrorCode, message: str | None) -> None:
        self._definition = definition(name)
        self._classes = struct_classes(name)
        self._version = version
        self._error = error
        self._message = message
        self._items = 0

    def response(self, request: Request) -> Steps[Response]:
        struct = self._definition.struct
        api = struct.name.removesuffix("Response")
        if not self._may_fail(struct):
            raise LookupError(f"{struct.name} v{self._version} has no place for an error")
        made: Any = message_class(struct.name)()
        has_error = self._put(made, struct)
        if not has_error or self._version in _ALSO_EACH.get(api, ()):
            elsewhere = _ASKED_ELSEWHERE.get(api)
            yield from self._put_in_arrays(made, struct, request, None if elsewhere is None else elsewhere(request))
        if api == "Fetch":
            made.session_id = cast("Any", request).session_id
        elif api == "JoinGroup":
            nullable = next(field.nullable for field in struct.fields if field.name == "protocol_name")
            made.protocol_name = None if self._version in nullable else ""
        response: Response = made
        return response

    def _put(self, made: Any, struct: StructDefinition) -> bool:
        """Put the error into a struct; False if it has no place for one."""
        if not self._has_error(struct):
            return False
        for field in self._fields(struct):
            if field.name in _ERRORS:
                setattr(made, field.name, self._error)
            elif field.name == "error_message":
                made.error_message = self._message
            elif field.name in _UNKNOWN:
                setattr(made, field.name, -1)
        return True

    def _put_in_arrays(
        self, made: Any, struct: StructDefinition, asked: Struct, things: Iterable[Any] | None = None
    ) -> Steps[None]:
        """Put the error into the arrays of a struct, which answer those of ``asked``, or ``things``."""
        for field, inner in self._arrays(struct):
            if self._may_fail(inner):
                items = []
                for thing in things or _named(asked, field.name):
                    self._items += 1
                    if self._items % ITEMS_A_STEP == 0:
                        yield
                    items.append((yield from self._item(inner, thing)))
                setattr(made, field.name, items)

    def _item(self, struct: StructDefinition, thing: Any) -> Steps[Struct]:
        """The struct that answers a thing: a struct of the request, or its only key."""
        made: Any = self._classes[struct.name]()
        for field in self._fields(struct):
            if field.name in _KEYS:
                key = _key(thing, field.name)
                if key is not None or self._version in field.nullable:
                    setattr(made, field.name, key)
        for field, inner in self._arrays(struct):
            if field.name in _PARTS_OF_KEYS:
                parts = getattr(thing, field.name)
                setattr(made, field.name, [finished(self._item(inner, part)) for part in parts])  # a few
        if not self._put(made, struct):
            yield from self._put_in_arrays(made, struct, thing)
        item: Struct = made
        return item

    def _fields(self, struct: StructDefinition) -> Iterator[Field]:
        return (field for field in struct.fields if self._version in field.versions)

    def _arrays(self, struct: StructDefinition) -> Sequence[tuple[Field, StructDefinition]]:
        return [
            (field, self._definition.structs[field.type.removeprefix("[]")])
            for field in self._fields(struct)
            if field.is_array and field.is_struct
        ]

    def _may_fail(self, struct: StructDefinition) -> bool:
        """Whether a struct, or one in it, has a place for an error."""
        return self._has_error(struct) or any(self._may_fail(inner) for _, inner in self._arrays(struct))

    def _has_error(self, struct: StructDefinition) -> bool:
        return any(field.name in _ERRORS for field in self._fields(struct))


def _named(asked: Struct, array: str) -> list[Any]:
    """What a struct of a request names that an ``array`` of the response answers."""
    return [thing for name in _ASKED.get(array, (array,)) for thing in getattr(asked, name, None) or ()]


def _key(thing: Any, name: str) -> Any:
    if not isinstance(thing, Struct):
        return thing
    return getattr(thing, name, getattr(thing, _ASKED_KEYS.get(name, name), None))


PARTS_AT_ONCE: Final = 1000
"""Parts of a response that are looked at before other tasks run."""


def count_errors(counts: Counter[str], response: Response) -> Steps[None]:
    """Count every error in a response by the name that Kafka has for its code, some parts in a step."""
    for path in paths_of(type(response).__name__):
        parts: list[Any] = [response]
        for name in path:
            outer, parts = parts, []
            for number, part in enumerate(outer, start=1):
                parts += getattr(part, name) or ()
                if number % PARTS_AT_ONCE == 0:
                    yield
        for number, part in enumerate(parts, start=1):
            if part.error_code:
                counts[ErrorCode(part.error_code).name] += 1
            if number % PARTS_AT_ONCE == 0:
                yield


@cache
def paths_of(response: str) -> tuple[tuple[str, ...], ...]:
    """The arrays, one in the other, whose structs have an error code, of a response by name; () is the response."""
    described = definition(response)
    paths: list[tuple[str, ...]] = []

    def visit(struct: StructDefinition, path: tuple[str, ...]) -> None:
        for field in struct.fields:
            if field.name == "error_code":
                paths.append(path)
            elif field.is_struct and field.is_array:
                visit(described.structs[field.type.removeprefix("[]")], (*path, field.name))

    visit(described.struct, ())
    return tuple(paths)
