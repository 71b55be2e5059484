"""What groups have committed, and when it is to be forgotten."""

from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from seglog_broker.coordinators.groups.group_memory import GROUP_BYTES, OFFSET_BYTES

NO_EXPIRY: Final = -1

NO_TOPIC: Final = "-"
"""The topic id of a commit for a topic that did not exist at the start. It is no id of a topic."""


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
        self._unstable: set[tuple[str, Key]] = set()  # of Kafka's directory; no client adds to them

    def size_of(self, group: str, committed: CommittedOffset) -> int:
        """Bytes that one takes, with its group if it is the first of that."""
        of_group = 0 if group in self._by_group else GROUP_BYTES + len(group)
        return of_group + OFFSET_BYTES + len(committed.metadata)

    def __contains__(self, group: str) -> bool:
        return group in self._by_group

    def __iter__(self) -> Iterator[str]:
        """The groups that have committed something, also where all of it is forgotten and the group has not ended."""
        return iter(self._by_group)

    def __len__(self) -> int:
        return sum(map(len, self._by_group.values()))

    def of(self, group: str) -> dict[Key, CommittedOffset]:
        """What a group has committed; not to be changed."""
        return self._by_group.get(group, _NOTHING)

    def is_unstable(self, group: str, key: Key) -> bool:
        """Whether a transaction is open that has committed something here, which may or may not come to count."""
        return (group, key) in self._unstable

    def note_unstable(self, group: str, key: Key) -> None:
        """Such a transaction is open."""
        self._unstable.add((group, key))

    def put(self, group: str, key: Key, committed: CommittedOffset) -> None:
        """Note a commit."""
        self._remove(group, key)
        self.size += self.size_of(group, committed)
        self._by_group.setdefault(group, {})[key] = committed

    def add(self, loaded: "CommittedOffsets") -> None:
        """Take over what was loaded, of groups that have committed nothing here."""
        self._by_group.update(loaded._by_group)  # noqa: SLF001 - its own class
        self._unstable.update(loaded._unstable)  # noqa: SLF001
        self.size += loaded.size

    def drop(self, group: str, key: Key) -> None:
        """Forget a commit, if there is one, and what an open transaction has committed. The group stays."""
        self._unstable.discard((group, key))
        self._remove(group, key)

    def end(self, group: str) -> None:
        """Forget a group, unless it has committed something."""
        if self._by_group.get(group) == _NOTHING:
            del self._by_group[group]
            self.size -= GROUP_BYTES + len(group)

    def _remove(self, group: str, key: Key) -> None:
        before = self._by_group.get(group, {}).pop(key, None)
        if before is not None:
            self.size -= self.size_of(group, before)


_NOTHING: Final[dict[Key, CommittedOffset]] = {}


class Retention(NamedTuple):
    """What decides when the offsets of a group are forgotten, by Kafka's rules.

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
        """Whether there are members that read the topic, as far as it is known what they read."""
        return not self.is_empty and (self.read_topics is None or topic in self.read_topics)

    def expires_ms(self, topic: str, committed: CommittedOffset) -> int | None:
        """When an offset is to be forgotten, ms of the wall clock; None: not as things stand."""
        if self.may_be_read(topic):
            return None
        if committed.expires_ms != NO_EXPIRY:
            return committed.expires_ms
        if self.is_empty and self.empty_since_ms is not None:
            return max(self.empty_since_ms, committed.committed_ms) + self.retention_ms
        return committed.committed_ms + self.retention_ms
