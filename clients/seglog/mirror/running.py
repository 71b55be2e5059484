"""A mirror from its beginning to its end: topics, claim, rounds, groups; what is away is waited for."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from seglog.mirror.claim import Claim, ClaimLostError
from seglog.mirror.cluster import Cluster, Topic
from seglog.mirror.copying import BeginAgainError, Copier
from seglog.mirror.errors import MirrorError
from seglog.mirror.group_offsets import CarriedGroup, GroupOffsets
from seglog.mirror.positions import Origin, Partition, Position
from seglog.mirror.resuming import Resumption
from seglog.mirror.topics import check_same, described, ensure_topics
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


class Mirror:
    """Copies topics from ``source`` to ``target``; ``tell`` gets sentences for people, ``show`` how far it is.

    ``is_asked_to_end`` is looked at every second.
    """

    def __init__(
        self,
        source: Cluster,
        target: Cluster,
        plan: Plan,
        *,
        tell: Callable[[str], None],
        show: Callable[[State], None],
        is_asked_to_end: Callable[[], bool],
    ) -> None:
        self._source = source
        self._target = target
        self._plan = plan
        self._tell = tell
        self._show = show
        self._is_asked_to_end = is_asked_to_end
        self._groups = GroupOffsets(source, target, plan.groups, tell)
        self._ends: dict[Partition, int] = {}
        self._changed = time.monotonic()
        self._copied = 0
        self._seen: deque[tuple[float, int, int]] = deque()
        self._problem = ""

    def run(self) -> Outcome | None:
        """Mirror until it is asked to end (None), or until the plan is fulfilled.

        Raises MirrorError where the two sides do not fit, or no longer.
        """
        if self._source.cluster_id == self._target.cluster_id:
            raise MirrorError(
                f"{self._source.name} and {self._target.name} are the same cluster ({self._source.cluster_id}): a "
                "restored copy keeps the id of its original, and cannot be mirrored to or from it"
            )
        topics = described(self._source, self._plan.topics)
        there = ensure_topics(self._source, self._target, topics, self._plan.replication, self._tell)
        origins = {
            Partition(name, number): Origin(self._source.cluster_id, topic.topic_id, there[name].topic_id)
            for name, topic in topics.items()
            for number in range(topic.partitions)
        }
        partitions = [Partition(name, number) for name, topic in there.items() for number in range(topic.partitions)]
        claim = Claim(self._target, partitions, self._tell)
        batch_bytes = min(int(self._target.settings_of(name, own=False)["max.message.bytes"]) for name in topics)
        fruitless = 0
        try:
            while not self._is_asked_to_end():
                before = self._copied
                try:
                    check_same(self._source, topics)
                    check_same(self._target, there, is_target=True)
                    claim.take()
                    positions = Resumption(self._source, self._target, claim, origins, self._tell).positions()
                    return self._follow(claim, positions, topics, there, batch_bytes)
                except NotReachableError as error:
                    self._note(error.message)
                except (ClaimLostError, BeginAgainError) as error:
                    fruitless = fruitless + 1 if self._copied == before else 0
                    if fruitless > _AGAIN_MOST:
                        why = str(error) or self._target.trouble or "it refuses the records' sequence"
                        raise MirrorError(f"{self._target.name} does not take records: {why}") from error
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
        copier = Copier(
            self._source,
            self._target,
            claim,
            positions,
            compression=self._plan.compression,
            batch_bytes=batch_bytes,
            is_asked_to_end=self._is_asked_to_end,
        )
        begun, groups_at, check_at = self._copied, 0.0, 0.0
        try:
            self._look(positions)
            self._changed = time.monotonic()
            while not self._is_asked_to_end():
                count = copier.round()
                self._copied = begun + copier.copied
                now = time.monotonic()
                if count or now >= check_at:
                    check_same(self._source, topics)
                    check_same(self._target, there, is_target=True)
                    check_at = now + CHECK_SECONDS
                lag = self._measure(copier.positions, count)
                if self._plan.carries_groups and now >= groups_at:
                    self._groups.carry(copier.positions)
                    groups_at = now + GROUPS_SECONDS
                if not count and not lag and self._is_done():
                    return self._outcome(copier.positions)
        finally:
            copier.close()
        return None

    def _is_done(self) -> bool:
        silent = time.monotonic() - self._changed
        return self._plan.until_caught_up or (self._plan.cut_over and silent >= self._plan.silent_seconds)

    def _outcome(self, positions: dict[Partition, Position]) -> Outcome:
        groups = self._groups.last(positions, self._ends) if self._plan.carries_groups else []
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
        self._show(State(self._copied, (self._copied - copied) / took, lag, to_go))
        return lag

    def _look(self, positions: dict[Partition, Position]) -> int:
        """The lag: offsets of the source that are not copied yet."""
        self._ends = self._source.end_offsets(positions, committed=True)
        lag = sum(max(0, end - positions[where].source) for where, end in self._ends.items())
        self._seen.append((time.monotonic(), self._copied, lag))
        return lag

    def _note(self, problem: str) -> None:
        """Tell that a side is away, and that it is back; the same not each time."""
        if problem and problem != self._problem:
            self._tell(f"warning: {problem}; waiting for it")
        elif self._problem and not problem:
            self._tell("goes on")
        self._problem = problem
