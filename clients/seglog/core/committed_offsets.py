"""Committed offsets of a group: conversations that commit and look them up."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from seglog.core.conversations import Conversation, ask, pages
from seglog.core.group_membership import Member
from seglog.core.moments import to_partition
from seglog_protocol import messages

OFFSETS_PER_REQUEST: Final = 5_000


class Committed(NamedTuple):
    """A committed offset, that of the record to be read next, and the text that was committed with it.

    ``committed_ms`` is when, in epoch ms of the broker's clock. ``expires_ms`` is when it is forgotten as things stand;
    None: not while the group has members that read the topic.
    """

    offset: int
    metadata: str = ""
    committed_ms: int | None = None
    expires_ms: int | None = None


def look_up_committed(
    group: str, topic: str, partitions: Sequence[int] | None = None, *, stable: bool = False
) -> Conversation[dict[int, Committed]]:
    """The committed offsets of partitions of a topic (None: all); partitions without one are left out.

    With ``stable`` it raises UnstableOffsetCommitError where an open transaction has committed another offset.
    """
    found: dict[int, Committed] = {}
    for some in [None] if partitions is None else pages(_numbers(partitions), OFFSETS_PER_REQUEST):
        asked = None if some is None else [messages.GroupPartition(topic, partition) for partition in some]
        request = messages.CommittedOffsetsRequest(group, asked, True if stable else None)
        reply, _ = yield from ask(request, messages.CommittedOffsetsReply, is_repeatable=True)
        for result in reply.offsets:
            if result.topic != topic:
                continue
            if result.error is not None:
                raise result.error
            if result.offset is not None:
                times = (result.committed_ms, result.expires_ms)
                found[result.partition] = Committed(result.offset, result.metadata or "", *times)
    return found


def _numbers(partitions: object) -> list[int]:
    if isinstance(partitions, str) or not isinstance(partitions, Iterable):
        raise TypeError(f"partitions is a sequence of whole numbers or None, not {partitions!r}")
    return [to_partition(partition) for partition in partitions]


def commit_request(
    group: str,
    topic: str,
    topic_id: str,
    offsets: Sequence[tuple[int, int]],
    member: Member | None,
    instance_id: str | None,
    metadata: str | None,
    *transaction: Any,
) -> messages.CommitOffsetsRequest:
    """The request that stores offsets by partition, as ``member``, or without one for a group that has no members.

    ``topic_id`` is that of the topic that was read, "" if it is not known. ``transaction`` is the transactional id,
    producer id and epoch of one that the offsets are part of.
    """
    return messages.CommitOffsetsRequest(
        group,
        [messages.CommitOffset(topic, partition, offset, metadata=metadata) for partition, offset in offsets],
        None if member is None else member.member_id,
        None if member is None else member.generation,
        instance_id,
        {topic: topic_id} if topic_id else None,
        *transaction,
    )


def commit(
    group: str,
    topic: str,
    topic_id: str,
    offsets: Mapping[int, int],
    member: Member,
    instance_id: str | None,
    metadata: str | None,
) -> Conversation[None]:
    """Store offsets by partition, as of ``commit_request``.

    Raises the error of the whole request, or the first partition's when the others are stored.
    """
    failed = None
    for some in pages(sorted(offsets.items()), OFFSETS_PER_REQUEST):
        request = commit_request(group, topic, topic_id, some, member, instance_id, metadata)
        reply, _ = yield from ask(request, messages.CommitOffsetsReply, is_repeatable=True)
        failed = failed or next((result.error for result in reply.offsets if result.error is not None), None)
    if failed is not None:
        raise failed
