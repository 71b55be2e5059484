"""Conversations about consumer groups: listed, described with their lag, reset, deleted."""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from operator import index
from typing import Final, NamedTuple, TypeVar

from seglog.core.conversations import Conversation, ask, check, pages
from seglog.core.kafka_requests import ask_kafka, check_kafka, kafka_error
from seglog.core.moments import EXAMPLES, AtOffset, AtTime, Edge, Moment
from seglog.core.offsets import PLACES_PER_REQUEST, PartitionLag, PartitionOffsets, look_up, partition_lag, to_moment
from seglog_protocol import messages
from seglog_protocol.errors import NonEmptyGroupError, SeglogError, UnknownGroupError
from seglog_protocol.kafka import messages as kafka
from seglog_protocol.kafka.error_codes import ErrorCode
from seglog_protocol.messages.base import ITEMS_MAX
from seglog_protocol.record_batch import INT64_MAX
from seglog_protocol.texts import shortened

PlaceT = TypeVar("PlaceT", bound=tuple[str, int])

TARGETS: Final = f"{EXAMPLES}, or +N or -N: so many records after or before the committed offset"
"""The targets of a reset, for messages of errors."""

_SHIFT: Final = re.compile(r"[+-]\d+", re.ASCII)
_DIGITS_MAX: Final = 19


class Shift(NamedTuple):
    """So many records after the committed offset, or before it if negative."""

    records: int


GroupTopics = str | Sequence[str] | Mapping[str, Sequence[int] | None]
"""A topic, several, or some partitions (None: all) of each."""


class GroupOffset(NamedTuple):
    """The committed offset of a group in a partition, and its lag; times are epoch ms.

    ``offset`` is that of the next record to read, and None where nothing is committed: the partition is only assigned.
    ``expires_ms`` is when the offset is forgotten as things stand (None: it is not). ``member_id`` is the member to
    which the partition is assigned. ``lag`` is None without a committed offset, and where ``error`` says what kept the
    broker from telling it.
    """

    topic: str
    partition: int
    offset: int | None = None
    latest: int | None = None
    lag: PartitionLag | None = None
    metadata: str = ""
    committed_ms: int | None = None
    expires_ms: int | None = None
    member_id: str | None = None
    error: SeglogError | None = None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group: ``group`` has its state and members, ``offsets`` what it committed, by topic and partition."""

    group: messages.DescribeGroupReply
    offsets: list[GroupOffset]

    @property
    def members(self) -> list[messages.DescribedMember]:
        """Its live members."""
        return self.group.members

    @property
    def records(self) -> int:
        """Offsets left to read in all partitions with a committed offset."""
        return records_behind(self.offsets)


class OffsetReset(NamedTuple):
    """A committed offset that is reset from ``before`` (None: nothing was committed) to ``after``.

    ``asked`` is the offset that was asked for, before it was limited to the log, [``earliest``, ``latest``]; None
    where no record has the time that was asked for or a later one, so that it is ``latest``.
    """

    topic: str
    partition: int
    before: int | None
    after: int
    earliest: int
    latest: int
    asked: int | None

    @property
    def note(self) -> str | None:
        """Why ``after`` is not what was asked for; None where it is."""
        if self.asked is None:
            return "no record is that new: the log end"
        if self.asked < self.earliest:
            return f"{self.asked} is below the log start"
        if self.asked > self.latest:
            return f"{self.asked} is beyond the log end"
        return None


def records_behind(offsets: Iterable[GroupOffset]) -> int:
    """Offsets left to read in all partitions with a committed offset."""
    return sum(offset.lag.records for offset in offsets if offset.lag is not None)


def parse_shift(text: str) -> Shift | None:
    """``+N`` or ``-N``; None for anything else, such as the time ``-1h``. ValueError for a number that is too large."""
    word = text.strip()
    if _SHIFT.fullmatch(word) is None:
        return None
    if len(word) > 1 + _DIGITS_MAX or abs(int(word)) > INT64_MAX:
        raise ValueError(f"{shortened(word, 2 * _DIGITS_MAX)} is too large a number")
    return Shift(int(word))


# --- Looking ----------------------------------------------------------------------------------------------------------


def list_groups() -> Conversation[tuple[list[messages.ListedGroup], int]]:
    """As ``Client.groups``, page by page, and the time of the broker's wall clock in epoch ms."""
    found: list[messages.ListedGroup] = []
    while True:
        request = messages.ListGroupsRequest(found[-1].group if found else None)
        reply, _ = yield from ask(request, messages.ListGroupsReply, is_repeatable=True)
        found += reply.groups
        if not reply.more or not reply.groups:
            return found, reply.now_ms


def describe_group(name: str) -> Conversation[GroupDescription]:
    """As ``Client.describe_group``."""
    group, _ = yield from ask(messages.DescribeGroupRequest(name), messages.DescribeGroupReply, is_repeatable=True)
    owners = {
        (assigned.topic, partition): member.member_id
        for member in group.members
        for assigned in member.assignment or ()
        for partition in assigned.partitions
    }
    return GroupDescription(group, (yield from group_offsets(name, owners)))


def group_offsets(name: str, owners: Mapping[tuple[str, int], str] | None = None) -> Conversation[list[GroupOffset]]:
    """The committed offsets of a group and its lag; with the partitions in ``owners``, {partition: member}."""
    owned = dict(owners or {})
    found = [
        GroupOffset(
            committed.topic,
            committed.partition,
            committed.offset,
            None,
            None,
            committed.metadata or "",
            committed.committed_ms,
            committed.expires_ms,
            owned.pop((committed.topic, committed.partition), None),
            committed.error,
        )
        for committed in (yield from _committed(name))
    ]
    found += [GroupOffset(topic, partition, member_id=member) for (topic, partition), member in owned.items()]
    found.sort(key=lambda offset: (offset.topic, offset.partition))
    described: list[GroupOffset] = []
    for some in pages(found, PLACES_PER_REQUEST):
        described += yield from _with_lag(some)
    return described


def _with_lag(offsets: Sequence[GroupOffset]) -> Conversation[list[GroupOffset]]:
    """The same with their lag, or with the error that keeps it from being known."""
    request = messages.LagRequest(
        [messages.LagPartition(each.topic, each.partition, each.offset or 0) for each in offsets]
    )
    reply, _ = yield from ask(request, messages.LagReply, is_repeatable=True)
    described: list[GroupOffset] = []
    for each, result in zip(offsets, reply.partitions, strict=True):
        if each.error is not None or result.error is not None:
            described.append(each._replace(error=each.error or result.error))
            continue
        lag = None if each.offset is None else partition_lag(result, each.offset, reply.now_ms)
        described.append(each._replace(latest=result.latest, lag=lag))
    return described


def _committed(name: str) -> Conversation[list[messages.CommittedOffset]]:
    """All that a group has committed."""
    reply, _ = yield from ask(
        messages.CommittedOffsetsRequest(name), messages.CommittedOffsetsReply, is_repeatable=True
    )
    return [committed for committed in reply.offsets if committed.offset is not None or committed.error is not None]


# --- Resetting --------------------------------------------------------------------------------------------------------


def reset_group(
    name: str, to: int | str | datetime | Moment | Shift, topics: GroupTopics | None, *, dry_run: bool = False
) -> Conversation[list[OffsetReset]]:
    """As ``Client.reset_group``."""
    if isinstance(to, Shift):
        target: Moment | Shift = Shift(index(to.records))
    else:
        target = (parse_shift(to) if isinstance(to, str) else None) or to_moment(to, TARGETS)
    refusal = yield from _live_members(name)
    if refusal is not None:
        raise refusal
    before = {(known.topic, known.partition): known.offset for known in (yield from _committed(name))}
    timestamp = target.timestamp if isinstance(target, AtTime) else None
    resets: list[OffsetReset] = []
    for topic, partitions in _wanted(topics, before).items():
        found, _ = yield from look_up(topic, partitions, timestamp)
        resets += [_reset(name, target, offsets, before.get((topic, offsets.partition))) for offsets in found]
    if not resets:
        what = f"group {name!r} has committed nothing" if topics is None else "no partition is given"
        raise ValueError(f"{what}, so there is no offset to reset: name a topic, or partitions of it")
    if not dry_run:
        yield from commit_offsets(name, {(each.topic, each.partition): each.after for each in resets})
    return resets


def _live_members(name: str) -> Conversation[NonEmptyGroupError | None]:
    """The error that names the members of a group; None where it has none, or is not there."""
    with suppress(UnknownGroupError):
        group, _ = yield from ask(messages.DescribeGroupRequest(name), messages.DescribeGroupReply, is_repeatable=True)
        if group.members:
            return NonEmptyGroupError.of(name, [(member.member_id, member.client_host) for member in group.members])
    return None


def _wanted(topics: GroupTopics | None, committed: Iterable[tuple[str, int]]) -> dict[str, Sequence[int] | None]:
    """The partitions of each topic, None for all; for ``topics`` None those that are committed."""
    if topics is not None:
        return _by_topic(topics)
    known: dict[str, list[int]] = {}
    for topic, partition in committed:
        known.setdefault(topic, []).append(partition)
    return dict(sorted(known.items()))


def _by_topic(topics: GroupTopics) -> dict[str, Sequence[int] | None]:
    if isinstance(topics, Mapping):
        return dict(topics)
    if not isinstance(topics, Iterable):
        raise TypeError(f"topics is a topic, several, or {{topic: partitions}}, not {topics!r}")
    return dict.fromkeys([topics] if isinstance(topics, str) else topics)


def _reset(name: str, target: Moment | Shift, offsets: PartitionOffsets, before: int | None) -> OffsetReset:
    if isinstance(target, Shift):
        if before is None:
            raise ValueError(
                f"group {name} has committed nothing for {offsets.topic}-{offsets.partition} that {target.records:+} "
                "could count from; give an offset, a time, earliest or latest"
            )
        asked: int | None = before + target.records
    elif isinstance(target, AtTime):
        asked = offsets.offset
    elif isinstance(target, AtOffset):
        asked = target.offset
    else:
        asked = offsets.earliest if target is Edge.EARLIEST else offsets.latest
    after = offsets.latest if asked is None else min(max(asked, offsets.earliest), offsets.latest)
    return OffsetReset(offsets.topic, offsets.partition, before, after, offsets.earliest, offsets.latest, asked)


def commit_offsets(name: str, offsets: Mapping[PlaceT, int]) -> Conversation[None]:
    """Commit offsets by topic and partition, as one who is no member; raises the first partition's error."""
    for some in pages(list(offsets.items()), ITEMS_MAX):
        request = messages.CommitOffsetsRequest(
            name, [messages.CommitOffset(place[0], place[1], offset) for place, offset in some]
        )
        reply, _ = yield from ask(request, messages.CommitOffsetsReply, is_repeatable=True)
        check(reply.offsets)


# --- Deleting ---------------------------------------------------------------------------------------------------------


class DeletedGroup(messages.Message):
    """A group that was deleted, or why it was not."""

    group: str
    error: SeglogError | None = None


def delete_groups(names: Sequence[str]) -> Conversation[list[DeletedGroup]]:
    """As ``Client.delete_groups``."""
    deleted: list[DeletedGroup] = []
    for some in pages(names, ITEMS_MAX):
        response = yield from ask_kafka(kafka.DeleteGroupsRequest(groups_names=list(some)), 3)
        for result in response.results:
            name = result.group_id
            error = kafka_error(result.error_code, result.error_message, f"group {name!r}", group=name)
            if isinstance(error, NonEmptyGroupError):
                error = (yield from _live_members(name)) or error
            deleted.append(DeletedGroup(name, error))
    return deleted


def delete_group(name: str) -> Conversation[None]:
    """As ``Client.delete_group``."""
    check((yield from delete_groups([name])))


def delete_group_offsets(name: str, topics: GroupTopics) -> Conversation[list[tuple[str, int]]]:
    """As ``Client.delete_group_offsets``."""
    wanted = _by_topic(topics)
    found: list[tuple[str, int]] = []
    for known in (yield from _committed(name)):
        partitions = wanted.get(known.topic, ())
        if partitions is None or known.partition in partitions:  # None: all of the topic
            found.append((known.topic, known.partition))
    for some in pages(found, ITEMS_MAX):
        yield from _forget(name, some)
    return found


def _forget(name: str, places: Sequence[tuple[str, int]]) -> Conversation[None]:
    """Delete committed offsets; raises the first partition's error."""
    cls = kafka.OffsetDeleteRequest
    topics = {topic: cls.OffsetDeleteRequestTopic(name=topic, partitions=[]) for topic, _ in places}
    for topic, partition in places:
        topics[topic].partitions.append(cls.OffsetDeleteRequestPartition(partition_index=partition))
    response = yield from ask_kafka(cls(group_id=name, topics=list(topics.values())), 0)
    check_kafka(response.error_code, None, f"what group {name!r} has committed cannot be deleted", group=name)
    for answered in response.topics:
        for result in answered.partitions:
            is_read = result.error_code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
            why = f"members of group {name} read topic {answered.name}: stop them first" if is_read else None
            told = f"what is committed for {answered.name}-{result.partition_index} cannot be deleted"
            check_kafka(result.error_code, why, told, group=name, topic=answered.name)
