"""The classes of messages: defaults, equality, what they look like."""

import pytest

from seglog_protocol.kafka import messages

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


def test_there_are_no_fields_but_kafkas() -> None:
    with pytest.raises(TypeError, match="topic_name"):
        Topic(topic_name="t")  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        Topic().topic_name = "t"  # type: ignore[attr-defined]
