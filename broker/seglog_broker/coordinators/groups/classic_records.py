"""Records of a classic group's metadata in ``__consumer_offsets``, of type 2."""

from collections.abc import Iterable
from typing import Final

from seglog_broker.coordinators.groups.classic_member import ClassicMember
from seglog_broker.coordinators.groups.membership import Now, Record
from seglog_protocol.kafka.messages import GroupMetadataKey, GroupMetadataValue

GROUP_METADATA: Final = 2
"""The type of these records: the version of their key."""

_VALUE_VERSION: Final = 3


def metadata_record(
    group_id: str,
    protocol_type: str,
    generation: int,
    protocol: str | None,
    leader: str,
    members: Iterable[ClassicMember],
    now: Now,
) -> Record:
    """A generation with these members and their assignments; with none, it has neither a protocol nor a leader."""
    written = [
        GroupMetadataValue.MemberMetadata(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=member.protocols[protocol or ""],
            assignment=member.assignment,
        )
        for member in members
    ]
    value = GroupMetadataValue(
        protocol_type=protocol_type,
        generation=generation,
        protocol=protocol if written else None,
        leader=leader if written else None,
        current_state_timestamp=now.wall_ms,
        members=written,
    )
    return Record(GroupMetadataKey(group=group_id), GROUP_METADATA, value, _VALUE_VERSION)


def restored_member(written: GroupMetadataValue.MemberMetadata, protocol: str, now: Now) -> ClassicMember:
    """The member of a record, seen last ``now``; it supports the protocol of its generation alone."""
    timeout_ms = written.rebalance_timeout
    return ClassicMember(
        written.member_id,
        written.group_instance_id,
        written.client_id,
        written.client_host,
        written.session_timeout,
        written.session_timeout if timeout_ms < 0 else timeout_ms,
        {protocol: bytes(written.subscription)},
        now.monotonic_ms,
        assignment=bytes(written.assignment),
    )


def tombstone(group_id: str) -> Record:
    """The record that deletes a group."""
    return Record(GroupMetadataKey(group=group_id), GROUP_METADATA, None)
