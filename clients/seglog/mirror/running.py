"""A mirror from its beginning to its end: topics found or made, claim, rounds, groups; it waits for what is away."""

import re
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from seglog.mirror.claim import Claim, ClaimLostError
from seglog.mirror.cluster import Cluster, Topic
from seglog.mirror.copying import BeginAgainError, Copier
from seglog.mirror.errors import MirrorError
from seglog.mirror.group_offsets import CarriedGroup, GroupOffsets
from seglog.mirror.positions import Origin, Partition, Position
from seglog.mirror.resuming import Resumption
from seglog_protocol.errors import NotReachableError

GROUPS_SECONDS: Final = 10.0
"""How often committed offsets are carried over while a mirror follows."""
CHECK_SECONDS: Final = 5.0
_RATE_SECONDS: Final = 10.0
_AGAIN_SECONDS: Final = 1.0
_AGAIN_MOST: Final = 20
"""So many times in a row positions may be read anew without that a record is copied in between."""


@dataclass(frozen=True)
class Plan:
    """What a mirror is to do."""

    topics: tuple[str, ...]
    groups: tuple[str, ...] = ()
    carries_groups: bool = True
    compression: str = "lz4"
    replication: int = -1
    cut_over: bool = False
    silent_seconds: float = 5.0
    until_caught_up: bool = False


class State(NamedTuple):
    """How far a mirror is. ``seconds_to_go`` is None while the lag does not get smaller."""

    copied: int
    per_second: float
    lag: int
    seconds_to_go: float | None


@dataclass(frozen=True)
class Outcome:
    """What there was at the end of a mirror that ended by itself."""

    copied: int
    partitions: int
    offsets_equal: bool
    groups: list[CarriedGroup] = field(default_factory=list)


@dataclass
class Mirror:
    """Copies topics from ``source`` to ``target``; ``tell`` gets sentences for people, ``show`` how far it is.

    ``is_asked_to_end`` is looked at every second.
    """

    source: Cluster
    target: Cluster
    plan: Plan
    tell: Callable[[str], None]
    show: Callable[[State], None]
    is_asked_to_end: Callable[[], bool]
    _ends: dict[Partition, int] = field(default_factory=dict)
    _changed: float = 0.0
    _copied: int = 0
    _seen: deque[tuple[float, int, int]] = field(default_factory=deque)
    _problem: str = ""

    def __post_init__(self) -> None:
        self._groups = GroupOffsets(self.source, self.target, self.plan.groups, self.tell)

    def run(self) -> Outcome | None:
        """Mirror until it is asked to end (None), or until the plan is fulfilled.

        Raises MirrorError where the two sides do not fit, or no longer.
        """
        if self.source.cluster_id == self.target.cluster_id:
            raise MirrorError(
                f"{self.source.name} and {self.target.name} are the same cluster ({self.source.cluster_id}): a "
                "restored copy keeps the id of its original, and cannot be mirrored to or from it"
            )
        topics = described(self.source, self.plan.topics)
        there = ensure_topics(self.source, self.target, topics, self.plan.replication, self.tell)
        origins = {
            Partition(name, number): Origin(self.source.cluster_id, topic.topic_id, there[name].topic_id)
            for name, topic in topics.items()
            for number in range(topic.partitions)
        }
        partitions = [Partition(name, number) for name, topic in there.items() for number in range(topic.partitions)]
        claim = Claim(self.target, partitions, self.tell)
        batch_bytes = min(int(self.target.settings_of(name, own=False)["max.message.bytes"]) for name in topics)
        fruitless = 0
        try:
            while not self.is_asked_to_end():
                before = self._copied
                try:
                    check_same(self.source, topics)
                    check_same(self.target, there, is_target=True)
                    claim.take()
                    positions = Resumption(self.source, self.target, claim, origins, self.tell).positions()
                    return self._follow(claim, positions, topics, there, batch_bytes)
                except NotReachableError as error:
                    self._note(error.message)
                except (ClaimLostError, BeginAgainError) as error:
                    fruitless = fruitless + 1 if self._copied == before else 0
                    if fruitless > _AGAIN_MOST:
                        why = str(error) or self.target.trouble or "it refuses the records' sequence"
                        raise MirrorError(f"{self.target.name} does not take records: {why}") from error
                time.sleep(_AGAIN_SECONDS)
        finally:
            claim.close()
        return None

    def _follow(
        self,
        claim: Claim,
        positions: dict[Partition, Position],
        topics: dict[str, Topic],
        there: dict[str, Topic],
        batch_bytes: int,
    ) -> Outcome | None:
        """Copy until everything that was asked for is there; None if somebody asked to end before."""
        copier = Copier(
            self.source, self.target, claim, dict(positions), self.plan.compression, batch_bytes, self.is_asked_to_end
        )
        begun, groups_at, check_at = self._copied, 0.0, 0.0
        try:
            self._look(positions)
            self._changed = time.monotonic()
            while not self.is_asked_to_end():
                count = copier.round()
                self._copied = begun + copier.copied
                now = time.monotonic()
                if count or now >= check_at:
                    check_same(self.source, topics)
                    check_same(self.target, there, is_target=True)
                    check_at = now + CHECK_SECONDS
                lag = self._measure(copier.positions, count)
                if self.plan.carries_groups and now >= groups_at:
                    self._groups.carry(copier.positions)
                    groups_at = now + GROUPS_SECONDS
                if not count and not lag and self._is_done():
                    return self._outcome(copier.positions)
        finally:
            copier.close()
        return None

    def _is_done(self) -> bool:
        silent = time.monotonic() - self._changed
        return self.plan.until_caught_up or (self.plan.cut_over and silent >= self.plan.silent_seconds)

    def _outcome(self, positions: dict[Partition, Position]) -> Outcome:
        groups = self._groups.last(positions, self._ends) if self.plan.carries_groups else []
        equal = all(not position.distance for position in positions.values())
        return Outcome(self._copied, len(positions), equal, groups)

    def _measure(self, positions: dict[Partition, Position], count: int) -> int:
        ends = self._ends
        lag = self._look(positions)
        now = self._seen[-1][0]
        if ends != self._ends or count:
            self._changed = now
        self._note("")
        while now - self._seen[0][0] > _RATE_SECONDS:
            self._seen.popleft()
        began, copied, lag_before = self._seen[0]
        took = max(now - began, 0.001)
        smaller = (lag_before - lag) / took
        to_go = 0.0 if not lag else lag / smaller if smaller > 0 else None
        self.show(State(self._copied, (self._copied - copied) / took, lag, to_go))
        return lag

    def _look(self, positions: dict[Partition, Position]) -> int:
        """The lag: offsets of the source that are not copied yet."""
        self._ends = self.source.end_offsets(positions, committed=True)
        lag = sum(max(0, end - positions[where].source) for where, end in self._ends.items())
        self._seen.append((time.monotonic(), self._copied, lag))
        return lag

    def _note(self, problem: str) -> None:
        """Tell that a side is away, and that it is back; the same not each time."""
        if problem and problem != self._problem:
            self.tell(f"warning: {problem}; waiting for it")
        elif self._problem and not problem:
            self.tell("goes on")
        self._problem = problem


_KEYS: Final = re.compile(r"[a-z][a-z0-9]*(?:[.-][a-z0-9]+)+")
_TIMESTAMP_TYPE: Final = "message.timestamp.type"
_CREATED_SECONDS: Final = 30.0


def described(source: Cluster, names: Collection[str]) -> dict[str, Topic]:
    """The topics to be mirrored. Raises MirrorError where one is not there."""
    found = source.topics(names)
    if absent := sorted(set(names) - found.keys()):
        known = source.topic_names()
        there = f"it has {', '.join(known[:10])}{', …' if len(known) > 10 else ''}" if known else "it has none"
        raise MirrorError(f"{source.name} has no topic {', '.join(absent)}; {there}")
    return found


def ensure_topics(
    source: Cluster, target: Cluster, topics: Mapping[str, Topic], replication: int, tell: Callable[[str], None]
) -> dict[str, Topic]:
    """The target's topics; those that are missing are created, and ``tell`` is told of what is not as in the source.

    Raises MirrorError where a topic cannot be created, or takes fewer partitions than there are.
    """
    there = target.topics(topics)
    for name, topic in topics.items():
        if name in there:
            continue
        settings = _accepted(source, target, name, topic.partitions, replication, tell)
        if why := target.create_topic(name, topic.partitions, replication, settings):
            raise MirrorError(f"{target.name} cannot create topic {name}: {why}; create it there yourself")
        tell(f"created topic {name} with {topic.partitions} partitions in {target.name}")
    found = _created(target, topics)
    for name, topic in topics.items():
        if found[name].partitions < topic.partitions:
            raise MirrorError(
                f"topic {name} has {topic.partitions} partitions in {source.name} and {found[name].partitions} in "
                f"{target.name}: add the missing ones there, then start the mirror again"
            )
        if found[name].partitions > topic.partitions:
            tell(
                f"warning: topic {name} has more partitions in {target.name}: after the switch its producers will put "
                "keys into other partitions than before"
            )
        if target.settings_of(name, own=False).get(_TIMESTAMP_TYPE) == "LogAppendTime":
            raise MirrorError(
                f"topic {name} has {_TIMESTAMP_TYPE}=LogAppendTime in {target.name}, which would replace the records' "
                "timestamps: set it to CreateTime while the mirror runs"
            )
    return found


def _created(target: Cluster, names: Collection[str]) -> dict[str, Topic]:
    """The topics, once the broker that is asked has heard of those that its controller has just created."""
    give_up = time.monotonic() + _CREATED_SECONDS
    while absent := sorted(set(names) - (found := target.topics(names)).keys()):
        if time.monotonic() > give_up:
            raise MirrorError(
                f"{target.name} has no topic {absent[0]}, although it was created: start the mirror again"
            )
        time.sleep(0.1)
    return found


def _accepted(
    source: Cluster, target: Cluster, name: str, partitions: int, replication: int, tell: Callable[[str], None]
) -> dict[str, str]:
    """The source's configuration without what the target refuses, which the target names."""
    settings = source.settings_of(name, own=True)
    if settings.pop(_TIMESTAMP_TYPE, None) == "LogAppendTime":
        tell(f"warning: topic {name} is created with {_TIMESTAMP_TYPE}=CreateTime, so that timestamps stay as they are")
    while settings and (why := target.create_topic(name, partitions, replication, settings, is_trial=True)):
        refused = next((key for key in _KEYS.findall(why) if key in settings), None)
        if refused is None:
            raise MirrorError(f"{target.name} cannot create topic {name}: {why}; create it there yourself")
        tell(f"warning: topic {name} is created without {refused}={settings.pop(refused)}: {why}")
    return settings


def check_same(side: Cluster, topics: Mapping[str, Topic], *, is_target: bool = False) -> None:
    """Raises MirrorError where a topic is not the one it was when the mirror began."""
    now = side.topics(topics)
    again = "start the mirror again: it copies the topic from its beginning"
    for name, topic in topics.items():
        if name not in now:
            advice = again if is_target else "leave it out, or delete it in the target as well"
            raise MirrorError(f"topic {name} was deleted in {side.name}; {advice}")
        if now[name].topic_id != topic.topic_id:
            advice = again if is_target else f"delete it in the target as well, then {again}"
            raise MirrorError(f"topic {name} was deleted in {side.name} and made again; {advice}")
        if now[name].partitions != topic.partitions:
            raise MirrorError(
                f"topic {name} in {side.name} had {topic.partitions} partitions when the mirror began, and has "
                f"{now[name].partitions} now: give it as many on the other side, then start the mirror again"
            )
