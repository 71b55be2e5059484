"""Offsets as they are committed, also by transactions, as they are kept and answered, and when they expire."""

from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from seglog_broker.coordinators.groups.group_memory import GROUP_BYTES, OFFSET_BYTES, PENDING_BYTES
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
    """A committed offset as it is answered; all are -1 where there is none. Times are ms of the wall clock.

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

    @property
    def is_there(self) -> bool:
        """Whether anything was committed. Kafka's clients may commit an offset below 0, and are given it again."""
        return self.committed_ms >= 0


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


class Pending(NamedTuple):
    """What an open transaction has committed for a partition.

    ``counts`` is False if a later commit counts whatever becomes of the transaction; it is unstable all the same until
    that ends, as in Kafka. ``is_loaded`` is whether it was committed before the last start.
    """

    committed: CommittedOffset
    counts: bool = True
    is_loaded: bool = False

    @property
    def size(self) -> int:
        """Bytes that it takes of the budget for committed offsets."""
        return PENDING_BYTES + len(self.committed.metadata)


class PendingOffsets:
    """What open transactions have committed, by producer id, group and partition."""

    def __init__(self) -> None:
        self._by_producer: dict[int, dict[str, dict[Key, Pending]]] = {}
        self._producers: dict[str, dict[Key, dict[int, None]]] = {}
        """By group and partition: the producers that have committed something, the last one at the end."""
        self.size = 0
        """Bytes that they take of the budget for committed offsets."""

    def of(self, group: str) -> Collection[Key]:
        """The partitions for which there is something."""
        return self._producers.get(group, _NOTHING_PENDING).keys()

    def groups_of(self, producer_id: int) -> list[str]:
        """The groups for which the open transaction of a producer has committed something."""
        return list(self._by_producer.get(producer_id, ()))

    def first_of(self, producer_id: int, group: str) -> Key | None:
        """A partition for which it has."""
        return next(iter(self._by_producer.get(producer_id, {}).get(group, ())), None)

    def hold(self, producer_id: int, group: str, key: Key, pending: Pending) -> None:
        """Note a commit, in place of an earlier one of the same transaction."""
        self.take(producer_id, group, key)
        self._by_producer.setdefault(producer_id, {}).setdefault(group, {})[key] = pending
        self._producers.setdefault(group, {}).setdefault(key, {})[producer_id] = None
        self.size += pending.size + len(key[0])

    def supersede(self, group: str, key: Key, before: int | None = None) -> None:
        """A commit counts that came after these: after all, or after those before that of a producer."""
        for producer_id in self._producers.get(group, _NOTHING_PENDING).get(key, ()):
            if producer_id == before:
                break
            of_group = self._by_producer[producer_id][group]
            of_group[key] = of_group[key]._replace(counts=False)

    def take(self, producer_id: int, group: str, key: Key) -> Pending | None:
        """Remove a commit, if there is one."""
        groups = self._by_producer.get(producer_id, {})
        pending = groups.get(group, {}).pop(key, None)
        if pending is None:
            return None
        self.size -= pending.size + len(key[0])
        if not groups[group]:
            del groups[group]
        if not groups:
            del self._by_producer[producer_id]
        of_group = self._producers[group]
        del of_group[key][producer_id]
        if not of_group[key]:
            del of_group[key]
        if not of_group:
            del self._producers[group]
        return pending

    def drop(self, group: str, key: Key) -> None:
        """Remove what all transactions have committed here."""
        for producer_id in list(self._producers.get(group, _NOTHING_PENDING).get(key, ())):
            self.take(producer_id, group, key)

    def add(self, loaded: "PendingOffsets") -> None:
        """Take over what was loaded, of groups for which nothing is committed here."""
        for producer_id, groups in loaded._by_producer.items():  # noqa: SLF001 - its own class
            self._by_producer.setdefault(producer_id, {}).update(groups)
        self._producers.update(loaded._producers)  # noqa: SLF001
        self.size += loaded.size


_NOTHING_PENDING: Final[dict[Key, dict[int, None]]] = {}


class CommittedOffsets:
    """The committed offsets of all groups, by group and partition.

    Methods are called in the order of the log: of several commits for a partition of a group the last one in the log
    counts, whenever its transaction is committed.
    """

    def __init__(self) -> None:
        self._by_group: dict[str, dict[Key, CommittedOffset]] = {}
        self.pending = PendingOffsets()
        self._size = 0
        self.changes = 0
        """Grows whenever there is one for another group or partition, or no more for one; not with other commits."""

    @property
    def size(self) -> int:
        """Bytes that they take of the budget for committed offsets, with those of open transactions."""
        return self._size + self.pending.size

    def size_of(self, group: str, key: Key, committed: CommittedOffset) -> int:
        """Bytes that one takes, with its group if it is the first of that."""
        of_group = 0 if group in self._by_group else GROUP_BYTES + len(group)
        return of_group + OFFSET_BYTES + len(key[0]) + len(committed.metadata)

    def __contains__(self, group: str) -> bool:
        return group in self._by_group

    def __iter__(self) -> Iterator[str]:
        """The groups with committed offsets, and those that have none, or only of transactions, and have not ended."""
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

    def put(self, group: str, key: Key, committed: CommittedOffset) -> None:
        """Note a commit outside of transactions."""
        self.pending.supersede(group, key)
        self._put(group, key, committed)

    def _put(self, group: str, key: Key, committed: CommittedOffset) -> None:
        self.changes += not self._remove(group, key)
        self._size += self.size_of(group, key, committed)
        self._by_group.setdefault(group, {})[key] = committed

    def add(self, loaded: "CommittedOffsets") -> None:
        """Take over what was loaded, of groups that have committed nothing here."""
        self._by_group.update(loaded._by_group)  # noqa: SLF001 - its own class
        self.pending.add(loaded.pending)
        self.changes += 1
        self._size += loaded._size  # noqa: SLF001

    def drop(self, group: str, key: Key) -> None:
        """Remove a committed offset, if there is one, also those of open transactions. The group stays."""
        self.pending.drop(group, key)
        self.changes += self._remove(group, key)

    def end(self, group: str) -> None:
        """Remove a group that has no committed offset, not even one of a transaction."""
        if self._by_group.get(group) == _NOTHING and not self.pending.of(group):
            del self._by_group[group]
            self.changes += 1
            self._size -= GROUP_BYTES + len(group)

    def _remove(self, group: str, key: Key) -> bool:
        before = self._by_group.get(group, {}).pop(key, None)
        if before is not None:
            self._size -= self.size_of(group, key, before)
        return before is not None

    # --- Of transactions ----------------------------------------------------------------------------------------------

    def hold(self, producer_id: int, group: str, key: Key, pending: Pending) -> None:
        """Note a commit of an open transaction."""
        if group not in self._by_group:
            self._by_group[group] = {}
            self._size += GROUP_BYTES + len(group)
            self.changes += 1
        self.pending.hold(producer_id, group, key, pending)

    def is_unstable(self, group: str, key: Key) -> bool:
        """True if an open transaction has committed an offset here, which may or may not come to count."""
        return key in self.pending.of(group)

    def end_transaction(self, producer_id: int, group: str, *, is_commit: bool) -> Iterator[tuple[Key, Pending] | None]:
        """End what a transaction has committed for a group, one with each step: what counts from now on, or None."""
        while (key := self.pending.first_of(producer_id, group)) is not None:
            if is_commit:
                self.pending.supersede(group, key, before=producer_id)
            pending = self.pending.take(producer_id, group, key)
            assert pending is not None, "it was the first one"
            if is_commit and pending.counts:
                self._put(group, key, pending.committed)
                yield key, pending
            else:
                yield None


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
