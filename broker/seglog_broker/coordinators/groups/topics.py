"""Topics as groups see them: by name or regular expression in subscriptions, by id in assignments and records.

The broker writes a topic id as 22 characters, Kafka's wire and records have sixteen bytes.
"""

import base64
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Final, NamedTuple

from seglog_broker.coordinators.client_patterns import PatternError
from seglog_broker.coordinators.groups.assignors import Assignment
from seglog_broker.coordinators.groups.consumer_records import MatchedTopics
from seglog_broker.coordinators.groups.consumer_requests import Matching, MaySee
from seglog_broker.coordinators.groups.consumer_state import ConsumerState
from seglog_broker.coordinators.state_machine import Now
from seglog_protocol.errors import InvalidRegularExpressionError
from seglog_protocol.steps import Pace, Steps

NO_ID: Final = bytes(16)
"""The id in a request that names a topic by its name."""


@lru_cache(maxsize=10_000)
def id_bytes(topic_id: str) -> bytes:
    """The sixteen bytes of a topic id."""
    return base64.urlsafe_b64decode(topic_id + "==")


@lru_cache(maxsize=10_000)
def id_text(topic_id: bytes) -> str:
    """The 22 characters of a topic id."""
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()


class TopicSize(NamedTuple):
    """A topic that exists; ``topic_id`` has 16 bytes."""

    topic_id: bytes
    partitions: int


class Topics:
    """The broker's topics at the moment. The service has them from the registry."""

    version = 0
    """Grows whenever topics are created, enlarged or deleted."""

    def find(self, name: str) -> TopicSize | None:
        """The topic of this name; None if there is none."""
        raise NotImplementedError

    def name(self, topic_id: bytes) -> str | None:
        """The name of a topic; None if there is none with this id."""
        raise NotImplementedError

    def names(self) -> Iterable[str]:
        """All topics that a regular expression may match: as in Kafka, the broker's own among them."""
        raise NotImplementedError


def by_id(partitions: Mapping[str, Iterable[int]], topics: Topics) -> Steps[Assignment]:
    """Partitions by topic id, from partitions by topic name. Topics that do not exist are left out."""
    found: dict[bytes, frozenset[int]] = {}
    pace = Pace()
    for name, numbers in partitions.items():
        topic = topics.find(name)
        if topic is not None and numbers:
            found[topic.topic_id] = frozenset(numbers)
        if pace.is_due():
            yield
    return found


def by_name(assignment: Assignment, topics: Topics) -> Iterator[tuple[str, frozenset[int]]]:
    """Partitions by topic name, from partitions by topic id. Topics that do not exist are left out."""
    for topic, numbers in assignment.items():
        name = topics.name(topic)
        if name is not None:
            yield name, numbers


REFRESH_PAUSE_MS: Final = 10_000
"""Time between two changes of the topics that members read, however often topics are created."""


class TopicRegexes:
    """The topics that each expression matches. The matching itself, which takes time, is the service's."""

    def __init__(self, state: ConsumerState) -> None:
        self._state: Final = state
        self._pending: Final[dict[str, frozenset[str]]] = {}
        """Expressions that match other topics by now, which members do not read yet."""
        self._refreshed_ms: int | None = None
        self.may_see: MaySee | None = None
        """Of the member that was heard of last; None: of none since the start."""

    def __contains__(self, regex: str) -> bool:
        return regex in self._state.matched

    def __iter__(self) -> Iterator[str]:
        return iter(self._state.matched)

    def take_new(self, regex: str, matching: Matching | None, now: Now) -> bool:
        """True if an expression is new: then members read what it matches. Raises InvalidRegularExpressionError."""
        if not regex or regex in self._state.matched:
            return False
        assert matching is not None, "an expression that is new comes with what it matches"
        if isinstance(matching, PatternError):
            raise InvalidRegularExpressionError(
                f"invalid regular expression {regex!r}: {matching}", group=self._state.group_id
            ) from None
        if not self._state.matched:
            self._refreshed_ms = now.monotonic_ms
        self._state.set_matched(regex, MatchedTopics(matching, now.wall_ms))
        return True

    def restored(self) -> None:
        """Add expressions of members that have no record: Kafka matches them after it has written their members."""
        for member in self._state.members.values():
            regex = member.subscription.regex
            if regex and regex not in self._state.matched:
                self._state.set_matched(regex, MatchedTopics(frozenset(), 0))

    def note(self, regex: str, changed: AbstractSet[str] | None, matching: frozenset[str]) -> None:
        """Note what an expression matches of the topics ``changed``, created or deleted ones; None: of all topics."""
        matched = self._state.matched.get(regex)
        if matched is None:
            return
        topics = matching
        if changed is not None:
            topics |= self._pending.get(regex, matched.topics) - changed
        if topics != matched.topics:
            self._pending[regex] = topics
        else:
            self._pending.pop(regex, None)

    def drop_unused(self, regexes: Iterable[str]) -> None:
        """Remove those of ``regexes`` by which no member subscribes any more."""
        for regex in regexes:
            if regex in self._state.matched and not self._state.is_used(regex):
                self._state.set_matched(regex, None)
                self._pending.pop(regex, None)

    def refresh(self, now: Now) -> bool:
        """Subscribe members to what their expressions match now, at most every ten seconds; True if that differs."""
        if not self._pending:
            return False
        if self._refreshed_ms is not None and now.monotonic_ms < self._refreshed_ms + REFRESH_PAUSE_MS:
            return False
        self._refreshed_ms = now.monotonic_ms
        for regex, topics in self._pending.items():
            self._state.set_matched(regex, MatchedTopics(topics, now.wall_ms))
        self._pending.clear()
        return True
