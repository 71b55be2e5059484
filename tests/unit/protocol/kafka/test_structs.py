"""The classes of messages, and the table that they are made of: derived from Kafka's definitions, with its codes."""

import ast

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode

from hatch_build import render_stub
from seglog_protocol.kafka import messages
from seglog_protocol.kafka.definitions import apis, definition, message_names
from seglog_protocol.kafka.error_codes import ErrorCode
from tests.support import REPOSITORY

Partition = messages.FetchResponse.PartitionData
Topic = messages.FetchResponse.FetchableTopicResponse


def test_fields_have_kafkas_defaults() -> None:
    partition = Partition()
    assert (partition.partition_index, partition.last_stable_offset, partition.preferred_read_replica) == (0, -1, -1)
    assert partition.aborted_transactions == []
    assert partition.records is None
    assert messages.ProduceRequest().transactional_id is None
    assert messages.MetadataRequest().allow_auto_topic_creation is True
    assert messages.FetchRequest().max_bytes == 0x7FFFFFFF
    assert Topic().topic == ""
    assert Topic().topic_id == bytes(16)


def test_absent_structs() -> None:
    """A tagged struct that is not there is none and another struct is one of defaults."""
    assert Partition().current_leader is None
    member = messages.ConsumerGroupDescribeResponse.Member()
    assert member.assignment == messages.ConsumerGroupDescribeResponse.Assignment()


def test_each_instance_has_lists_and_structs_of_its_own() -> None:
    one, other = Topic(), Topic()
    one.partitions.append(Partition())
    assert other.partitions == []
    cls = messages.ConsumerGroupDescribeResponse.Member
    assert cls().assignment is not cls().assignment


def test_messages_are_equal_if_their_fields_are() -> None:
    one = messages.FetchResponse(responses=[Topic(topic="t", partitions=[Partition(records=memoryview(b"abc"))])])
    same = messages.FetchResponse(responses=[Topic(topic="t", partitions=[Partition(records=b"abc")])])
    assert one == same
    same.responses[0].partitions[0].records = b"abd"
    assert one != same
    assert messages.HeartbeatResponse() != messages.LeaveGroupResponse()
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


def test_a_message_shows_its_fields_and_not_its_records() -> None:
    shown = repr(Topic(topic="t", partitions=[Partition(records=bytes(1000))]))
    assert shown.startswith("FetchResponse.FetchableTopicResponse(topic='t', topic_id=")
    assert "records=<1000 bytes>" in shown
    assert "records=b'abc'" in repr(Partition(records=memoryview(b"abc")))


# --- The table is derived from Kafka's own definitions, and the stub has all of it; error codes are Kafka's -----------


def test_the_stub_has_every_class_and_field_of_the_table() -> None:
    stub = ast.parse(render_stub(REPOSITORY))
    classes = [node for node in ast.walk(stub) if isinstance(node, ast.ClassDef)]
    found = {(one.name, tuple(ast.unparse(line.target) for line in _fields(one))) for one in classes}
    for name in message_names():
        cls = getattr(messages, name)
        for one in (cls, *(getattr(cls, struct) for struct in definition(name).structs)):
            assert (one.__name__, one.__slots__) in found


def _fields(one: ast.ClassDef) -> list[ast.AnnAssign]:
    return [line for line in one.body if isinstance(line, ast.AnnAssign)]


def test_every_message_has_a_class_with_its_fields_and_structs() -> None:
    for name in message_names():
        described, cls = definition(name), getattr(messages, name)
        assert cls.__slots__ == tuple(field.name for field in described.struct.fields)
        assert (described.api_key, described.versions) == (getattr(cls, "API_KEY", None), cls.VERSIONS)
        for struct in described.structs.values():
            assert getattr(cls, struct.name).__slots__ == tuple(field.name for field in struct.fields)
    assert dir(messages) == sorted(message_names())


def test_no_message_is_found_that_the_table_does_not_have() -> None:
    with pytest.raises(AttributeError, match="no message 'LeaderAndIsrRequest'"):
        messages.LeaderAndIsrRequest  # type: ignore[attr-defined]  # noqa: B018


def test_a_request_and_its_response_have_the_same_versions() -> None:
    for key, api in apis().items():
        request, response = definition(api.request), definition(api.response)
        assert request.api_key == response.api_key == key
        assert request.versions == response.versions == api.versions
        assert request.flexible == response.flexible == api.flexible


def test_codes_have_kafkas_names() -> None:
    ours = {code.value: code.name for code in ErrorCode if code < ErrorCode.GROUP_DELETION_FAILED}
    assert ours == {code.value: code.name.upper() for code in KioErrorCode}
    assert sorted(ours) == list(range(-1, 134))
