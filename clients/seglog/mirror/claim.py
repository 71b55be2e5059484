"""The target's partitions claimed for one mirror: as members of the group ``seglog-mirror`` of the target.

A second mirror of the same topics finds them taken. The group's committed offsets say how far the mirror is, and are
written as its member, so that one that was stopped for long and lost the partitions meanwhile cannot write them.
"""

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NoReturn

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from seglog.mirror.cluster import Cluster, Member
from seglog.mirror.errors import AWAY, MirrorError, code_of, translated
from seglog.mirror.positions import Partition, Position

GROUP: Final = "seglog-mirror"
SESSION_SECONDS: Final = 6
"""After a kill the partitions are free again when the group has not heard of the mirror for so long."""
_FENCING: Final = frozenset(
    {
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError._STATE,  # noqa: SLF001 - its name
        KafkaError._ASSIGNMENT_LOST,  # noqa: SLF001
    }
)
_REBALANCING: Final = frozenset({KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS})
"""A mirror of other topics has come or gone: this one keeps its partitions, in the next generation."""
_WAIT_SECONDS: Final = 3 * SESSION_SECONDS
_WAIT_FOR_OTHERS_SECONDS: Final = SESSION_SECONDS + 5
_SLOW_ANSWER_SECONDS: Final = 2.0


class ClaimLostError(Exception):
    """Others may write to the partitions: to be claimed anew, then read how far they are."""


class Claim:
    """The partitions, held until ``close``; ``tell`` gets sentences for people about waiting."""

    def __init__(self, target: Cluster, partitions: Collection[Partition], tell: Callable[[str], None]) -> None:
        self._target = target
        self._wanted = frozenset(partitions)
        self._tell = tell
        self._held: frozenset[Partition] = frozenset()
        self._is_lost = False
        self._consumer: Any = None

    def take(self) -> None:
        """Return when all of them are held. Raises MirrorError, naming the other mirror, where they stay taken."""
        self.close()
        self._wait_for_others()
        self._consumer = self._target.consumer(
            GROUP,
            **{
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": SESSION_SECONDS * 1000,
                "heartbeat.interval.ms": 2000,
                "max.poll.interval.ms": 86_400_000,
                "queued.max.messages.kbytes": 1024,
            },
        )
        topics = sorted({partition.topic for partition in self._wanted})
        self._consumer.subscribe(topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke)
        give_up = time.monotonic() + _WAIT_SECONDS
        while not self._held >= self._wanted:
            self._consumer.poll(0.2)
            self._target.raise_refused()
            if time.monotonic() > give_up:
                self._see_who_is_first()
                give_up = time.monotonic() + _WAIT_SECONDS
        self._is_lost = False

    def check(self) -> None:
        """Raises ClaimLostError when others may hold some of them."""
        if self._consumer is None:
            raise ClaimLostError
        self._consumer.poll(0)
        if self._is_lost or not self._held >= self._wanted:
            raise ClaimLostError

    def read(self) -> dict[Partition, Position]:
        """How far each partition is that was mirrored before."""
        asked = [TopicPartition(*partition) for partition in sorted(self._wanted)]
        found = self._again(lambda: self._consumer.committed(asked, timeout=10))
        positions = {}
        for each in found:
            if each.offset >= 0 and (position := Position.decode(int(each.offset), each.metadata or "")) is not None:
                positions[Partition(each.topic, each.partition)] = position
        return positions

    def write(self, positions: Mapping[Partition, Position]) -> None:
        """Commit how far partitions are. Raises ClaimLostError where they are held by others."""
        if positions:
            places = [TopicPartition(*where, what.target, what.encode()) for where, what in positions.items()]
            self._again(lambda: self._consumer.commit(offsets=places, asynchronous=False))

    def close(self) -> None:
        """Leave the group: others may take them at once."""
        if self._consumer is not None:
            self._consumer.close()
        self._consumer, self._held = None, frozenset()

    def _again(self, ask: Callable[[], Any]) -> Any:
        """Ask until the coordinator answers; it has the partitions given to others after a session at most."""
        while True:
            self.check()
            try:
                return ask()
            except KafkaException as error:
                if code_of(error) in AWAY | _REBALANCING:
                    time.sleep(0.2)
                    continue
                if code_of(error) in _FENCING:
                    raise ClaimLostError from error
                raise translated(error.args[0], self._target.name) from error

    def _wait_for_others(self) -> None:
        """Until nobody has them. Raises MirrorError where somebody stays for longer than a mirror that was killed.

        A coordinator that starts anew gives its members their whole session again, this mirror's own of before as well,
        which could not leave while it was away.
        """
        own = self._target.client_id
        has_told = False
        asked = began = time.monotonic()
        while others := self._others():
            now = time.monotonic()
            if now - asked > _SLOW_ANSWER_SECONDS:
                began = now
            names = sorted({each.client_id for each in others} - {own})
            if names and now - began > _WAIT_FOR_OTHERS_SECONDS:
                self._raise_taken(others)
            if names and not has_told:
                shared = ", ".join(sorted(frozenset().union(*(each.topics for each in others))))
                self._tell(
                    f"waiting for another mirror, {names[0]}, to give up {shared}: {SESSION_SECONDS} s if it was killed"
                )
                has_told = True
            time.sleep(0.5)
            asked = time.monotonic()

    def _others(self) -> list[Member]:
        """Members with topics that this mirror wants, and of their topics those alone."""
        topics = {partition.topic for partition in self._wanted}
        found = [each._replace(topics=each.topics & topics) for each in self._target.members_of(GROUP)]
        return [each for each in found if each.topics]

    def _raise_taken(self, others: Collection[Member]) -> NoReturn:
        other = min(others, key=lambda each: (each.client_id == self._target.client_id, each.client_id))
        raise MirrorError(
            f"another mirror, {other.client_id} at {other.host.removeprefix('/')}, writes "
            f"{', '.join(sorted(other.topics))} to {self._target.name}; stop it, or name other topics"
        )

    def _see_who_is_first(self) -> None:
        """Of mirrors that began at the same time one goes on, that with the first name; else the group is joined anew.

        Raises MirrorError in the others, and ClaimLostError where there are none.
        """
        own = self._target.client_id
        others = [each for each in self._others() if each.client_id != own]
        if others and min(each.client_id for each in others) > own:
            return
        self.close()
        if others:
            self._raise_taken(others)
        raise ClaimLostError(f"the group {GROUP} does not give all partitions of the topics to this mirror")

    def _on_assign(self, consumer: Any, places: list[Any]) -> None:
        consumer.incremental_assign(places)
        consumer.pause(places)  # nothing is read here
        self._held |= {Partition(each.topic, each.partition) for each in places}

    def _on_revoke(self, consumer: Any, places: list[Any]) -> None:
        consumer.incremental_unassign(places)
        self._held -= {Partition(each.topic, each.partition) for each in places}
        self._is_lost = True
