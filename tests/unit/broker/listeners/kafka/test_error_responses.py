"""Errors as responses: every api in every version that the broker serves has one, and it names what was asked for."""

from collections.abc import Iterator
from typing import Any, Final

from seglog_broker.listeners.kafka.apis import APIS
from seglog_broker.listeners.kafka.error_responses import ITEMS_A_STEP, error_response, error_response_in_steps
from seglog_protocol.kafka import (
    messages,
    read_request,
    read_request_header,
    read_response,
    write_request,
    write_response,
)
from seglog_protocol.kafka.definitions import Definition, StructDefinition, apis, definition
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.kafka.structs import Request, Struct, message_class, struct_classes
from tests.support import each_case

ERROR: Final = ErrorCode.NOT_LEADER_OR_FOLLOWER

VERSIONS: Final = [(api.name, version) for api in APIS.values() for version in api.versions]

EACH: Final = (
    ("Produce", 3, 12, "topic_data.name", "responses.name"),
    ("Produce", 13, 13, "topic_data.topic_id", "responses.topic_id"),
    ("Produce", 3, 13, "topic_data.partition_data.index", "responses.partition_responses.index"),
    ("Fetch", 4, 12, "topics.topic", "responses.topic"),
    ("Fetch", 4, 12, "topics.partitions.partition", "responses.partitions.partition_index"),
    ("ListOffsets", 1, 11, "topics.name", "topics.name"),
    ("ListOffsets", 1, 11, "topics.partitions.partition_index", "topics.partitions.partition_index"),
    ("Metadata", 0, 13, "topics.name", "topics.name"),
    ("Metadata", 10, 13, "topics.topic_id", "topics.topic_id"),
    ("OffsetCommit", 2, 9, "topics.name", "topics.name"),
    ("OffsetCommit", 10, 10, "topics.topic_id", "topics.topic_id"),
    ("OffsetCommit", 2, 10, "topics.partitions.partition_index", "topics.partitions.partition_index"),
    ("OffsetFetch", 1, 1, "topics.name", "topics.name"),
    ("OffsetFetch", 1, 1, "topics.partition_indexes", "topics.partitions.partition_index"),
    ("OffsetFetch", 8, 10, "groups.group_id", "groups.group_id"),
    ("FindCoordinator", 4, 6, "coordinator_keys", "coordinators.key"),
    ("DescribeGroups", 0, 6, "groups", "groups.group_id"),
    ("CreateTopics", 2, 7, "topics.name", "topics.name"),
    ("DeleteTopics", 1, 5, "topic_names", "responses.name"),
    ("DeleteTopics", 6, 6, "topics.name", "responses.name"),
    ("DeleteTopics", 6, 6, "topics.topic_id", "responses.topic_id"),
    ("DeleteRecords", 0, 2, "topics.name", "topics.name"),
    ("DeleteRecords", 0, 2, "topics.partitions.partition_index", "topics.partitions.partition_index"),
    ("OffsetForLeaderEpoch", 2, 4, "topics.topic", "topics.topic"),
    ("OffsetForLeaderEpoch", 2, 4, "topics.partitions.partition", "topics.partitions.partition"),
    ("DescribeConfigs", 1, 4, "resources.resource_name", "results.resource_name"),
    ("DescribeConfigs", 1, 4, "resources.resource_type", "results.resource_type"),
    ("AlterConfigs", 0, 2, "resources.resource_name", "responses.resource_name"),
    ("AlterReplicaLogDirs", 1, 2, "dirs.topics.name", "results.topic_name"),
    ("AlterReplicaLogDirs", 1, 2, "dirs.topics.partitions", "results.partitions.partition_index"),
    ("CreatePartitions", 0, 3, "topics.name", "results.name"),
    ("DeleteGroups", 0, 3, "groups_names", "results.group_id"),
    ("ElectLeaders", 0, 2, "topic_partitions.topic", "replica_election_results.topic"),
    ("ElectLeaders", 0, 2, "topic_partitions.partitions", "replica_election_results.partition_result.partition_id"),
    ("IncrementalAlterConfigs", 0, 1, "resources.resource_name", "responses.resource_name"),
    ("AlterPartitionReassignments", 0, 1, "topics.name", "responses.name"),
    (
        "AlterPartitionReassignments", 0, 1,
        "topics.partitions.partition_index", "responses.partitions.partition_index",
    ),
    ("AlterClientQuotas", 0, 1, "entries.entity.entity_name", "entries.entity.entity_name"),
    ("DescribeProducers", 0, 0, "topics.name", "topics.name"),
    ("DescribeProducers", 0, 0, "topics.partition_indexes", "topics.partitions.partition_index"),
    ("DescribeTransactions", 0, 0, "transactional_ids", "transaction_states.transactional_id"),
    ("AddPartitionsToTxn", 0, 3, "v3_and_below_topics.name", "results_by_topic_v3_and_below.name"),
    (
        "AddPartitionsToTxn", 0, 3,
        "v3_and_below_topics.partitions", "results_by_topic_v3_and_below.results_by_partition.partition_index",
    ),
    ("WriteTxnMarkers", 1, 2, "markers.producer_id", "markers.producer_id"),
    ("WriteTxnMarkers", 1, 2, "markers.topics.name", "markers.topics.name"),
    ("WriteTxnMarkers", 1, 2, "markers.topics.partition_indexes", "markers.topics.partitions.partition_index"),
    ("TxnOffsetCommit", 0, 5, "topics.name", "topics.name"),
    ("TxnOffsetCommit", 6, 6, "topics.topic_id", "topics.topic_id"),
    ("TxnOffsetCommit", 0, 6, "topics.partitions.partition_index", "topics.partitions.partition_index"),
    ("ConsumerGroupDescribe", 0, 1, "group_ids", "groups.group_id"),
    ("ShareGroupDescribe", 1, 1, "group_ids", "groups.group_id"),
    ("DescribeShareGroupOffsets", 0, 1, "groups.group_id", "groups.group_id"),
    ("DescribeTopicPartitions", 0, 0, "topics.name", "topics.name"),
)  # fmt: skip
"""What requests name, from one version to another, and where it stands in the response."""

COUNTED: Final = {"AlterUserScramCredentials": 2, "CreateAcls": 2, "DeleteAcls": 2, "DescribeLogDirs": 1}
"""Errors in a response without names of its own: users once each, ACLs by their place, one of no directory."""

NAMELESS: Final = "DescribeUserScramCredentials"
"""Beside the error of the whole there is one for each user, without a name."""


def filled(name: str, version: int) -> Any:
    """A request with two items in each array, and something in each field."""
    described = definition(name)
    return fill(described, described.struct, message_class(name), version, ["a"])


def fill(described: Definition, struct: StructDefinition, cls: Any, version: int, at: list[str]) -> Any:
    values: dict[str, Any] = {}
    for field in struct.fields:
        if version not in field.versions or field.tag is not None:
            continue
        items = [value(described, field, version, [*at, str(number)]) for number in range(2 if field.is_array else 1)]
        values[field.name] = items if field.is_array else items[0]
    return cls(**values)


def value(described: Definition, field: Any, version: int, at: list[str]) -> Any:
    type_ = field.type.removeprefix("[]")
    if field.is_struct:
        cls = struct_classes(described.struct.name)[type_]
        return fill(described, described.structs[type_], cls, version, at)
    where = "".join(at)
    found = {"string": f"{field.name}{where}", "bool": True, "bytes": b"b", "records": b"", "float64": 1.0}
    return found.get(type_, where.encode().ljust(16)[:16] if type_ == "uuid" else 1 + int(at[-1]))


def structs_of(value: Any) -> Iterator[Struct]:
    """All structs in a message, itself first."""
    if isinstance(value, Struct):
        yield value
        for name in value.__slots__:
            yield from structs_of(getattr(value, name))
    elif isinstance(value, list):
        for item in value:
            yield from structs_of(item)


def failed(value: Any) -> list[Any]:
    return [struct for struct in structs_of(value) if error_of(struct) == ERROR]


def error_of(struct: Struct) -> Any:
    return getattr(struct, "error_code", getattr(struct, "partition_error_code", None))


def read_back(request: Request, version: int) -> Any:
    frame = memoryview(b"".join(write_request(7, "test", request, version)))[4:]
    return read_request(read_request_header(frame), frame)


def answered(request: Request, version: int) -> Any:
    """The response, as a client reads it."""
    response = error_response(read_back(request, version), version, ERROR, "as asked")
    frame = b"".join(write_response(7, response, version))
    correlation_id, found = read_response(request.API_KEY, version, memoryview(frame)[4:])
    assert correlation_id == 7
    return found


def found(value: Any, path: str) -> list[Any]:
    """The values at a path in a message, through all arrays on the way."""
    name, _, rest = path.partition(".")
    here = getattr(value, name)
    items = here if isinstance(here, list) else [here]
    return [inner for item in items for inner in found(item, rest)] if rest else items


@each_case(("name", "version"), VERSIONS)
def test_every_api_has_an_error_in_every_version(name: str, version: int) -> None:
    """It stands for the whole, or with each thing that the request names; the response can be written, and read."""
    key = next(api.key for api in APIS.values() if api.name == name)
    request = read_back(filled(apis()[key].request, version), version)
    response = answered(request, version)
    each = [struct for struct in failed(response) if struct is not response]
    rows = [row for row in EACH if row[0] == name and version in range(row[1], row[2] + 1)]
    for _, _, _, asked, answer in rows:
        assert sorted(found(response, answer)) == sorted(found(request, asked)) != []
    if rows:
        deepest = max((answer.rpartition(".")[0] for *_, answer in rows), key=len).removesuffix(".entity")
        assert list(map(error_of, found(response, deepest))) == [ERROR] * len(each)
        assert each
    elif getattr(response, "error_code", None) != ERROR:
        assert len(each) == COUNTED[name]
    else:
        assert len(each) == (2 if name == NAMELESS else 0)


def test_clients_of_before_get_the_error_of_a_fetch_with_its_partitions_and_for_the_whole() -> None:
    for version, whole in ((6, False), (7, True), (12, True)):
        response = answered(filled("FetchRequest", version), version)
        assert (response.error_code == ERROR) is whole
        assert len(failed(response)) == 4 + whole
    response = answered(filled("FetchRequest", 13), 13)
    assert failed(response) == [response]
    assert response.session_id == 1


def test_a_request_that_names_nothing_has_an_error_for_the_whole_or_none() -> None:
    assert failed(answered(messages.MetadataRequest(topics=None), 12)) == []
    assert len(failed(answered(messages.MetadataRequest(topics=None), 13))) == 1


def test_beside_an_error_there_is_no_offset_and_no_node() -> None:
    [topic, _] = answered(filled("ProduceRequest", 9), 9).responses
    assert topic.partition_responses[0].base_offset == -1
    [coordinator, _] = answered(filled("FindCoordinatorRequest", 4), 4).coordinators
    assert (coordinator.node_id, coordinator.host, coordinator.port) == (-1, "", -1)
    assert answered(filled("InitProducerIdRequest", 4), 4).producer_epoch == -1
    assert answered(filled("JoinGroupRequest", 7), 7).protocol_name is None


def test_a_sentence_stands_where_there_is_room_for_it() -> None:
    assert [item.error_message for item in failed(answered(filled("CreateTopicsRequest", 7), 7))] == ["as asked"] * 2
    assert answered(filled("ConsumerGroupHeartbeatRequest", 1), 1).error_message == "as asked"
    assert {item.error_message for item in failed(answered(filled("ProduceRequest", 7), 7))} == {None}


def test_an_error_for_very_many_things_is_made_in_steps() -> None:
    request = messages.DeleteRecordsRequest()
    for topic in range(10):
        partitions = [request.DeleteRecordsPartition(partition_index=number) for number in range(1_000)]
        request.topics.append(request.DeleteRecordsTopic(name=f"t{topic}", partitions=partitions))
    steps = 0
    for _ in error_response_in_steps(request, 2, ErrorCode.TOPIC_AUTHORIZATION_FAILED, "no"):
        steps += 1
    assert steps >= 10_000 // ITEMS_A_STEP
