"""Offsets as they are committed, kept and answered, and when they expire."""

from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from seglog_broker.coordinators.groups.group_memory import GROUP_BYTES, OFFSET_BYTES
from seglog_broker.coordinators.groups.membership import NO_GENERATION

NO_EXPIRY: Final = -1

NO_TOPIC: Final = "-"
"""The topic id of a commit for a topic that did not exist at the start. It is no id of a topic."""


class Committer(NamedTuple):
    """The member that commits or looks up offsets, with its generation or member epoch; by default no member."""

    member_id: str = ""
    generation: int = NO_GENERATION
    instance_id: str | None = None


class OffsetToCommit(NamedTuple):
    """The offset of the next record to be read in a partition; ``leader_epoch`` is -1 if unknown.

    ``topic_id`` is that of the topic that was read, "" for any that has the name.
    """

    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    topic_id: str = ""


class Committed(NamedTuple):
    """A committed offset as it is answered; ``offset`` is -1 where there is none. Times are ms of the wall clock.

    ``expires_ms`` is when it expires as things stand; None: not as long as the group has members that read the topic.
    ``is_unstable``: an open transaction has committed another one.
    """

    topic: str
    partition: int
    offset: int = -1
    leader_epoch: int = -1
    metadata: str = ""
    committed_ms: int = -1
    expires_ms: int | None = None
    is_unstable: bool = False


class CommittedOffset(NamedTuple):
    """The offset of the next record to be read. Times are ms of the wall clock.

    ``leader_epoch`` is -1 if unknown; ``expires_ms`` is a moment of its own, which old clients of Kafka could ask for,
    -1 without one. ``topic_id`` is "" where the topic is not known by its id.
    """

    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int
    expires_ms: int = NO_EXPIRY
    topic_id: str = ""


Key = tuple[str, int]
"""A topic and the number of a partition."""


class CommittedOffsets:
    """The committed offsets of all groups, by group and partition."""

    def __init__(self) -> None:
        self._by_group: dict[str, dict[Key, CommittedOffset]] = {}
        self.size = 0
        """Bytes that they take of the budget for committed offsets."""
        self.changes = 0
        """Grows whenever there is one for another group or partition, or no more for one; not with other commits."""
        self._unstable: set[tuple[str, Key]] = set()  # of Kafka's directory; no client adds to them

    def size_of(self, group: str, committed: CommittedOffset) -> int:
        """Bytes that one takes, with its group if it is the first of that."""
        of_group = 0 if group in self._by_group else GROUP_BYTES + len(group)
        return of_group + OFFSET_BYTES + len(committed.metadata)

    def __contains__(self, group: str) -> bool:
        return group in self._by_group

    def __iter__(self) -> Iterator[str]:
        """The groups with committed offsets, and those whose last one was removed and that have not ended."""
        return iter(self._by_group)

    def __len__(self) -> int:
        return sum(map(len, self._by_group.values()))

    @property
    def groups(self) -> int:
        """How many groups there are."""
        return len(self._by_group)

    def of(self, group: str) -> dict[Key, CommittedOffset]:
        """The committed offsets of a group; not to be changed."""
        return self._by_group.get(group, _NOTHING)

    def is_unstable(self, group: str, key: Key) -> bool:
        """True if an open transaction has committed an offset here, which may or may not come to count."""
        return (group, key) in self._unstable

    def note_unstable(self, group: str, key: Key) -> None:
        """Such a transaction is open."""
        self._unstable.add((group, key))

    def put(self, group: str, key: Key, committed: CommittedOffset) -> None:
        """Note a commit."""
        self.changes += not self._remove(group, key)
        self.size += self.size_of(group, committed)
        self._by_group.setdefault(group, {})[key] = committed

    def add(self, loaded: "CommittedOffsets") -> None:
        """Take over what was loaded, of groups that have committed nothing here."""
        self._by_group.update(loaded._by_group)  # noqa: SLF001 - its own class
        self._unstable.update(loaded._unstable)  # noqa: SLF001
        self.changes += 1
        self.size += loaded.size

    def drop(self, group: str, key: Key) -> None:
        """Remove a committed offset, if there is one, also that of an open transaction. The group stays."""
        self._unstable.discard((group, key))
        self.changes += self._remove(group, key)

    def end(self, group: str) -> None:
        """Remove a group that has no committed offset."""
        if self._by_group.get(group) == _NOTHING:
            del self._by_group[group]
            self.changes += 1
            self.size -= GROUP_BYTES + len(group)

    def _remove(self, group: str, key: Key) -> bool:
        before = self._by_group.get(group, {}).pop(key, None)
        if before is not None:
            self.size -= self.size_of(group, before)
        return before is not None


_NOTHING: Final[dict[Key, CommittedOffset]] = {}


class Retention(NamedTuple):
    """Decides when the committed offsets of a group expire, by Kafka's rules.

    While a group has members, offsets of topics that they read stay, and so do all while it is not known what they
    read. An empty group keeps its offsets for ``retention_ms`` from when it became empty; those of a group that never
    had members stay as long from when each was committed.
    """

    retention_ms: int
    is_empty: bool
    empty_since_ms: int | None
    """None: it never had members."""
    read_topics: Collection[str] | None
    """The topics that members read; None: not known."""

    def may_be_read(self, topic: str) -> bool:
        """True if members read the topic, or if it is not known what they read."""
        return not self.is_empty and (self.read_topics is None or topic in self.read_topics)

    def expires_ms(self, topic: str, committed: CommittedOffset) -> int | None:
        """When an offset expires, ms of the wall clock; None: not as things stand."""
        if self.may_be_read(topic):
            return None
        if committed.expires_ms != NO_EXPIRY:
            return committed.expires_ms
        if self.is_empty and self.empty_since_ms is not None:
            return max(self.empty_since_ms, committed.committed_ms) + self.retention_ms
        return committed.committed_ms + self.retention_ms
