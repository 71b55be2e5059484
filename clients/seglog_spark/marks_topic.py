"""The marks topic, which limits the search for marks: one record for each finished micro-batch of each query.

A finished micro-batch records the end of every partition of its target, so that a repetition of the next one searches
for marks only from there on. A query without a finished micro-batch records the ends before its first record, task by
task. All are written at ack "disk" before they are used. Nothing is deleted by age, because a query may be stopped for
a year; compaction may keep the newest record of each key.

A killed attempt may have left rows that are not on disk: it was waiting for its ack, or used "os", and nothing else
flushes them soon. A query that writes at "disk" flushes the target before it searches for marks, hence before it skips
a row, and before it records an end: if a power loss moved the log end below a recorded end, the marks of the next rows
could be below it.

A record is about one topic id, not its name: nothing is recorded about a recreated target.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from seglog import raw
from seglog.client import Client
from seglog_protocol.errors import UnknownTopicError
from seglog_protocol.messages import ConfigValue
from seglog_spark.catalog import patiently
from seglog_spark.marks import Mark, OtherRowsError, Rows, Writing, read_mark
from seglog_spark.options import WriteOptions

_CONFIG: Final[dict[str, ConfigValue]] = {"cleanup.policy": "compact", "retention.ms": -1, "retention.bytes": -1}
_LOOK_BACK: Final = 256
"""Records read from the end at first; each further attempt reads eight times as many."""

NextOffsets = dict[int, int]
"""Partition -> offset of the next record."""


class Content(NamedTuple):
    """All rows of a batch job: their number, and the sum of their fingerprints."""

    rows: int
    fingerprint: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The last finished micro-batch of a query, and the target's ends at that time."""

    epoch: int
    ends: NextOffsets
    content: Content | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """What the marks in the target prove: rows written, by partition, and the partition count used for keys.

    ``contents``: by partition and number of rows, the fingerprint of the first so many rows.
    """

    rows: dict[int, list[Rows]] = field(default_factory=dict)
    contents: dict[int, dict[int, int]] = field(default_factory=dict)
    partitions: int | None = None


class MarksTopic:
    """The marks topic of a broker, for queries that write to one target, as their ``options`` say."""

    def __init__(self, client: Client, options: WriteOptions) -> None:
        assert options.topic is not None
        self._client = client
        self._name = options.marks_topic
        self._target = options.topic
        self._is_durable = options.ack == "disk"

    def ends(self) -> NextOffsets:
        """The target's end offsets. At ack "disk" the records below them, of any producer, survive a power cut.

        Raises PartitionReadOnlyError when the disk has failed, because then that is not known.
        """
        found = patiently(lambda: self._client.offsets(self._target))
        ends = {place.partition: place.latest for place in found}
        fleeting = [place.partition for place in found if place.durable < place.latest]
        if self._is_durable and fleeting:
            ends |= patiently(lambda: raw.flush(self._client, self._target, fleeting))
        return ends

    def finish(self, query: str, epoch: int, content: Content | None = None) -> None:
        """Record that all rows of this micro-batch, or batch job, are in the target and have reached its ack level."""
        note = {"finished": epoch, "ends": self.ends()}
        self._write(self._key(query), note if content is None else note | {"content": content})

    def finished(self, query: str) -> Finished | None:
        """The last finished micro-batch; None when there is none."""
        found = self._noted(self._key(query))
        if found is None:
            return None
        content = Content(*found["content"]) if "content" in found else None
        return Finished(int(found["finished"]), _ends(found), content)

    def begin(self, writing: Writing) -> NextOffsets:
        """For a query without a finished micro-batch: the lowest offsets at which this task's rows can be."""
        key = self._key(writing.query, writing.task)
        found = self._noted(key)
        if found is not None and found["begun"] == writing.epoch:
            return _ends(found)
        ends = self.ends()
        self._write(key, {"begun": writing.epoch, "ends": ends})
        return ends

    def share(self, query: str, epoch: int, partitions: str) -> None:
        """Note the ``spark.sql.shuffle.partitions`` with which a micro-batch is begun, before any of its rows.

        Raises OtherRowsError where it was begun with another number, because then its rows may be in other tasks.
        """
        key = json.dumps([self._target, query, "partitions"])
        found = self._noted(key)
        if found is None or found["epoch"] != epoch:
            self._write(key, {"epoch": epoch, "partitions": partitions})
        elif found["partitions"] != partitions and ((done := self.finished(query)) is None or done.epoch < epoch):
            raise OtherRowsError(
                f"micro-batch {epoch} was begun with spark.sql.shuffle.partitions {found['partitions']}, and with "
                f"{partitions} its rows may be in other tasks, so none is written: start the query with "
                f"{found['partitions']} until this micro-batch is done"
            )

    def plan(self, job: str) -> dict[str, Any] | None:
        """The plan that a batch job recorded, whatever its target; None when there is none."""
        found = self._newest(_plan_key(job))
        if found is None or (found["target"] == self._target and found["topic_id"] != self._topic_id()):
            return None
        plan: dict[str, Any] = found["plan"]
        return plan

    def note_plan(self, job: str, plan: Mapping[str, Any]) -> None:
        """Record what a batch job is going to do, for when it is run again."""
        self._write(_plan_key(job), {"plan": plan})

    def _key(self, query: str, task: int | None = None) -> str:
        return json.dumps([self._target, query] if task is None else [self._target, query, task])

    def _topic_id(self) -> str:
        """The target's id; empty while there is no such topic."""
        try:
            return patiently(lambda: self._client.describe_topic(self._target)).id
        except UnknownTopicError:
            return ""

    def _noted(self, key: str) -> dict[str, Any] | None:
        """The newest record with ``key`` that is about the current target, not about a deleted topic of its name."""
        found = self._newest(key)
        return None if found is None or found["topic_id"] != self._topic_id() else found

    def _write(self, key: str, value: Mapping[str, Any]) -> None:
        self._client.create_topic(self._name, partitions=1, config=_CONFIG, exist_ok=True)
        with self._client.producer(self._name, ack="disk", linger_ms=0) as producer:
            note = {**value, "target": self._target, "topic_id": self._topic_id()}
            producer.send(json.dumps(note), key=key)

    def _newest(self, key: str) -> dict[str, Any] | None:
        topics = {topic.name for topic in self._client.topics()}
        if self._name not in topics:
            return None
        (place,) = self._client.offsets(self._name)
        end, look_back = place.latest, _LOOK_BACK
        while end > place.earliest:
            start = max(place.earliest, end - look_back)
            newest: dict[str, Any] | None = None
            with self._client.consumer(self._name, partitions=[0], start={0: start}, until={0: end}) as consumer:
                for record in consumer:
                    if record.key == key.encode() and record.value is not None:
                        newest = json.loads(record.value)
            if newest is not None:
                return newest
            end, look_back = start, look_back * 8
        return None

    def written(self, writing: Writing, since: NextOffsets) -> Found:
        """The rows of ``writing`` in the target, from the offsets ``since`` on: they need not be written again."""
        found = Found()
        for partition, end in self.ends().items():
            start = since.get(partition, 0)
            if start >= end:
                continue
            for mark, records in self._marks(partition, start, end):
                if mark.writing == writing:
                    found.rows.setdefault(partition, []).append((mark.rows - records, mark.rows))
                    if mark.content is not None:
                        found.contents.setdefault(partition, {})[mark.rows] = mark.content
                    found = replace(found, partitions=mark.partitions)
        return found

    def _marks(self, partition: int, start: int, end: int) -> Iterator[tuple[Mark, int]]:
        """The mark and the record count of every marked batch."""
        with self._client.consumer(
            self._target,
            partitions=[partition],
            start={partition: start},
            until={partition: end},
            on_out_of_range="earliest",
        ) as consumer:
            for batch in consumer.batches():
                first = next(batch.stored(), None)
                mark = None if first is None else read_mark(first.headers)
                if mark is not None:
                    yield mark, batch.header.last_offset_delta + 1


def _plan_key(job: str) -> str:
    return json.dumps(["", job, "plan"])  # no topic has that name


def _ends(found: Mapping[str, Any]) -> NextOffsets:
    return {int(partition): int(offset) for partition, offset in found["ends"].items()}
