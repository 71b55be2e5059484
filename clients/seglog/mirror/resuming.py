"""Where to go on: how far each partition is, by the target's log itself, held against the source's records.

The last position that was committed is behind what was written after it; those records are compared with the source's,
one by one, so that none is copied twice and none is left out, however the mirror before ended.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, TopicPartition

from seglog.mirror.claim import Claim
from seglog.mirror.cluster import Cluster
from seglog.mirror.errors import MirrorError, translated
from seglog.mirror.positions import Origin, Partition, Position
from seglog_protocol.errors import NotReachableError

Headers = tuple[tuple[str, bytes | None], ...]


class Content(NamedTuple):
    """All that is copied of a record. ``timestamp`` is in milliseconds, -1 for none."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int


class Placed(NamedTuple):
    """A record where it lies."""

    offset: int
    content: Content


def sendable(timestamp: int) -> int:
    """The timestamp of a copy: librdkafka takes 0 for the present time, so that the first millisecond of 1970 is 1."""
    return timestamp or 1


def next_to_copy(written: Iterable[Placed], source: Iterator[Placed], start: int, end: int) -> int:
    """The offset in the source from which on records are not in the target yet.

    ``written`` are the target's records that came from ``start`` of the source on, and ``source`` are those that are
    there now, up to ``end``. Compaction and retention may have taken some since: where offsets are missing in the
    source, records of the target may be missing there, too. Raises MirrorError where the target has others.
    """
    following = start
    ahead = next(source, None)
    for record in written:
        if ahead is not None and ahead.content == record.content:
            following, ahead = ahead.offset + 1, next(source, None)
        elif (ahead.offset if ahead is not None else end) <= following:
            raise MirrorError(f"the record at offset {record.offset:,} is not the source's at offset {following:,}")
    return following


FILLED_MOST: Final = 10_000_000
"""Of a partition whose log begins at a larger offset, offsets are not kept: so many records are not written for it."""
_FILLED_AT_ONCE: Final = 10_000
_SETTLED_SECONDS: Final = 1.0
_READ_AT_ONCE: Final = 1000
_PATIENCE_SECONDS: Final = 60.0


@dataclass(frozen=True)
class Resumption:
    """What both sides have, and from where each partition goes on. ``tell`` gets sentences for people."""

    source: Cluster
    target: Cluster
    claim: Claim
    origins: Mapping[Partition, Origin]
    tell: Callable[[str], None]

    def positions(self) -> dict[Partition, Position]:
        """Of all partitions; committed before this returns. Raises MirrorError where the two sides do not fit."""
        known = self.claim.read()
        starts = self.source.start_offsets(self.origins)
        ends = self.source.end_offsets(self.origins, committed=True)
        first, written = self.target.start_offsets(self.origins), self._settled_ends()
        found: dict[Partition, Position] = {}
        for partition, origin in self.origins.items():
            position = known.get(partition)
            if position is not None and position.origin.copy_id != origin.copy_id:
                position = None  # of a topic of this name that was deleted there
            if position is not None:
                self._check_origin(partition, position)
                if not position.filling:
                    start, end = starts[partition], ends[partition]
                    position = self._resumed(partition, position, start, end, written[partition])
            elif first[partition] == written[partition]:
                position = self._begun(partition, origin, starts[partition], written[partition])
            else:
                position = self._adopted(partition, origin, starts, ends, first, written)
            found[partition] = position
        self.claim.write({where: what for where, what in found.items() if what != known.get(where)})
        if filling := {where: what for where, what in found.items() if what.filling}:
            found |= self._filled(filling, written)
        return found

    def _settled_ends(self) -> dict[Partition, int]:
        """Where the target's logs end, once they stay so: requests of a mirror before may still be under way."""
        before: dict[Partition, int] = {}
        while (ends := self.target.end_offsets(self.origins)) != before:
            before = ends
            self.claim.check()
            time.sleep(_SETTLED_SECONDS)
        return ends

    def _check_origin(self, partition: Partition, position: Position) -> None:
        origin = self.origins[partition]
        if position.origin.cluster != origin.cluster:
            raise MirrorError(
                f"topic {partition.topic} in {self.target.name} has been mirrored from another cluster "
                f"({position.origin.cluster}), not from {self.source.name} ({origin.cluster}): delete it there first"
            )
        if position.origin.topic_id != origin.topic_id:
            raise MirrorError(
                f"topic {partition.topic} was deleted in {self.source.name} and made again since it was mirrored: "
                f"delete it in {self.target.name} as well, then start the mirror again"
            )

    def _begun(self, partition: Partition, origin: Origin, start: int, written: int) -> Position:
        """Into a partition without records. Where its log can be brought to the source's first offset, offsets stay."""
        policy = self.target.settings_of(partition.topic, own=False).get("cleanup.policy", "delete")
        if written >= start or start - written > FILLED_MOST or policy != "delete":
            if written != start:
                self.tell(
                    f"warning: offsets of {partition} differ by {start - written:,}: its log begins at {start:,} in "
                    f"{self.source.name}, and goes on at {written:,} in {self.target.name}"
                )
            return Position(origin, start, written, start)
        return Position(origin, start, start, start, filling=True)

    def _resumed(self, partition: Partition, position: Position, start: int, end: int, written: int) -> Position:
        if written < position.target:
            raise MirrorError(
                f"{partition} in {self.target.name} ends at offset {written:,}, and was mirrored up to "
                f"{position.target:,}: it has lost records; delete the topic there, then start the mirror again"
            )
        if end < position.source:
            raise MirrorError(
                f"{partition} ends at offset {end:,} in {self.source.name}, and {position.source:,} were mirrored: it "
                "has lost records; what is in the target is more than the source has"
            )
        from_offset = position.source
        if written > position.target:
            tail = read(self.target, partition, position.target, written)
            try:
                there = read(self.source, partition, max(from_offset, start), end)
                from_offset = next_to_copy(tail, there, from_offset, end)
            except MirrorError as error:
                raise MirrorError(
                    f"{partition} in {self.target.name} has records that no mirror wrote: {error.message}; stop who "
                    "else writes there, delete the topic there, and start the mirror again"
                ) from error
        if from_offset < start:
            self.tell(
                f"warning: offsets {from_offset:,} to {start - 1:,} of {partition} were deleted in {self.source.name} "
                "before they were mirrored"
            )
            from_offset = start
        straight = position.straight_from
        if from_offset - written != position.distance:
            straight = from_offset
        return Position(position.origin, from_offset, written, straight)

    def _adopted(
        self,
        partition: Partition,
        origin: Origin,
        starts: Mapping[Partition, int],
        ends: Mapping[Partition, int],
        first: Mapping[Partition, int],
        written: Mapping[Partition, int],
    ) -> Position:
        """Of a partition with records that nothing is known of: it goes on where all it has is the source's own."""
        begin, end = max(starts[partition], first[partition]), written[partition]
        there = (
            list(read(self.target, partition, at, at + 1)) == list(read(self.source, partition, at, at + 1)) != []
            for at in (begin, end - 1)
        )
        if begin < end <= ends[partition] and all(there):
            self.tell(
                f"{partition} in {self.target.name} has the source's records up to offset {end - 1:,}: it goes on"
            )
            return Position(origin, end, end, begin)
        raise MirrorError(
            f"{partition} in {self.target.name} has records that are not of this source ({end - first[partition]:,} "
            "offsets): delete the topic there, or mirror to a target without it"
        )

    def _filled(
        self, filling: Mapping[Partition, Position], written: Mapping[Partition, int]
    ) -> dict[Partition, Position]:
        """Bring empty logs to the source's first offsets, by records that are deleted at once."""
        for partition, position in filling.items():
            producer = self.target.producer(**{"linger.ms": 5, "compression.type": "lz4"})
            for number in range(written[partition], position.target):
                producer.produce(partition.topic, b"", None, partition.number, timestamp=1)
                while (number % _FILLED_AT_ONCE == 0 or number == position.target - 1) and producer.flush(1):
                    self.claim.check()
        ends = self.target.end_offsets(filling)
        for partition, position in filling.items():
            if ends[partition] != position.target:
                raise MirrorError(
                    f"{partition} in {self.target.name} ends at {ends[partition]:,}, not at {position.target:,}: "
                    "somebody else writes there; delete the topic there, then start the mirror again"
                )
        self.target.delete_records({partition: position.target for partition, position in filling.items()})
        done = {where: replace(what, filling=False) for where, what in filling.items()}
        self.claim.write(done)
        return done


def read(side: Cluster, partition: Partition, start: int, end: int) -> Iterator[Placed]:
    """The records of a partition from ``start`` up to ``end``. Raises SeglogError where they do not come."""
    if start >= end:
        return
    consumer = side.consumer("seglog-mirror-reader", **{"enable.partition.eof": True})
    try:
        consumer.assign([TopicPartition(*partition, start)])
        patience = time.monotonic() + _PATIENCE_SECONDS
        while True:
            for message in consumer.consume(_READ_AT_ONCE, 0.5):
                if (error := message.error()) is not None:
                    if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its name
                        return
                    raise translated(error, side.name, side.trouble)
                patience = time.monotonic() + _PATIENCE_SECONDS
                if message.offset() >= end:
                    return
                yield placed(message)
                if message.offset() == end - 1:
                    return
            side.raise_refused()
            if time.monotonic() > patience:
                raise NotReachableError(f"{side.name} does not send {partition}: {side.trouble}", server=side.name)
    finally:
        consumer.close()


def placed(message: Any) -> Placed:
    """A message of confluent-kafka, with the timestamp that its copy has."""
    headers = tuple((name, value) for name, value in message.headers() or ())
    return Placed(message.offset(), Content(message.key(), message.value(), headers, sendable(message.timestamp()[1])))
