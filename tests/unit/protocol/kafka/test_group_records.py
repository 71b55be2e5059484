"""The records of groups of the consumer protocol, as Kafka 4.3.1's own classes write them."""

from typing import Final

from seglog_protocol.kafka import Message, messages, read_message, write_message
from seglog_protocol.kafka.messages import (
    ConsumerGroupCurrentMemberAssignmentValue as CurrentAssignment,
)
from seglog_protocol.kafka.messages import (
    ConsumerGroupMemberMetadataValue as MemberMetadata,
)
from seglog_protocol.kafka.messages import (
    ConsumerGroupTargetAssignmentMemberValue as TargetAssignment,
)
from tests.support import each_case

TOPIC: Final = bytes.fromhex("0000000000000001 0000000000000002")


def member(classic: MemberMetadata.ClassicMemberMetadata | None = None) -> MemberMetadata:
    return MemberMetadata(
        instance_id="i",
        rack_id=None,
        client_id="c",
        client_host="/h",
        subscribed_topic_names=["a", "b"],
        subscribed_topic_regex="",
        rebalance_timeout_ms=60_000,
        server_assignor=None,
        classic_member_metadata=classic,
    )


GOLDEN: Final[list[tuple[Message, str]]] = [
    (messages.ConsumerGroupRegularExpressionKey(group_id="g", regular_expression="a.*"), "0001 67 0003 612e2a"),
    (messages.ConsumerGroupMetadataValue(epoch=7), "00000007 00"),
    (messages.ConsumerGroupMetadataValue(epoch=7, metadata_hash=-2), "00000007 01 00 08 fffffffffffffffe"),
    (member(), "0269 00 0263 032f68 03 0261 0262 01 0000ea60 00 01 00 01 00"),
    (member(MemberMetadata.ClassicMemberMetadata()), "0269 00 0263 032f68 03 0261 0262 01 0000ea60 00 00"),
    (
        member(
            MemberMetadata.ClassicMemberMetadata(
                session_timeout_ms=45_000,
                supported_protocols=[MemberMetadata.ClassicProtocol(name="range", metadata=b"\1\2")],
            )
        ),
        "0269 00 0263 032f68 03 0261 0262 01 0000ea60 00 01 00 11 01 0000afc8 02 0672616e6765 030102 00 00",
    ),
    (
        messages.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=7, assignment_timestamp=9),
        "00000007 01 00 08 0000000000000009",
    ),
    (
        TargetAssignment(topic_partitions=[TargetAssignment.TopicPartition(topic_id=TOPIC, partitions=[0, 1])]),
        "02 00000000000000010000000000000002 03 00000000 00000001 00 00",
    ),
    (
        CurrentAssignment(
            member_epoch=7,
            previous_member_epoch=6,
            state=1,
            assigned_partitions=[
                CurrentAssignment.TopicPartitions(topic_id=TOPIC, partitions=[0, 1], assignment_epochs=[5, 7])
            ],
            partitions_pending_revocation=[CurrentAssignment.TopicPartitions(topic_id=TOPIC, partitions=[2])],
        ),
        (
            "00000007 00000006 01"
            "02 00000000000000010000000000000002 03 00000000 00000001 01 00 09 03 00000005 00000007"
            "02 00000000000000010000000000000002 02 00000002 00 00"
        ),
    ),
    (
        CurrentAssignment(
            member_epoch=7,
            previous_member_epoch=6,
            assigned_partitions=[
                CurrentAssignment.TopicPartitions(topic_id=TOPIC, partitions=[2], assignment_epochs=None)
            ],
        ),
        "00000007 00000006 00 02 00000000000000010000000000000002 02 00000002 01 00 01 00 01 00",
    ),
    (
        messages.ConsumerGroupRegularExpressionValue(topics=["a"], version=3, timestamp=4),
        "02 0261 0000000000000003 0000000000000004 00",
    ),
]


@each_case(("message", "written"), GOLDEN)
def test_the_bytes_are_kafkas(message: Message, written: str) -> None:
    data = bytes.fromhex(written)
    assert write_message(message, 0) == data
    assert read_message(type(message), 0, data) == message
