"""A log directory with its topics and partitions, and a consumer of its files in place of a broker.

The consumer is ``ConsumerBase`` with requests answered from files, so positions, ends, gaps, checksums and errors are
the same as with a broker.
"""

import os
import time
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Self

from msgspec import structs

from seglog.core.connection import Reply
from seglog.core.consumer import ConsumerBase
from seglog.core.consumer_options import ConsumerOptions
from seglog.core.conversations import Ask, converse
from seglog.core.records import FetchedBatch
from seglog.directory.partition import PartitionFiles
from seglog_protocol import errors, messages
from seglog_protocol.isolation import READ_COMMITTED, Aborted
from seglog_protocol.record_batch import iter_batches, parse_header
from seglog_protocol.segment_files import OFFSET_MAX


class DirectoryConsumer(ConsumerBase):
    """Reads one topic from a log directory, up to the ends it had at the start; close it.

    Made by ``LogDirectory.consumer``.
    """

    def __init__(self, directory: "LogDirectory", topic: str, options: ConsumerOptions) -> None:
        self._directory = directory
        self._files: dict[int, PartitionFiles] = {}
        self._aborted: dict[int, tuple[int, int, list[Aborted]]] = {}
        """By partition: the aborted transactions with batches from one offset to another."""
        super().__init__(topic, options, converse(options.begin(topic), self._answer))

    def batches(self) -> Iterator[FetchedBatch]:
        """As ``Consumer.batches``."""
        yield from map(self._whole, iter(self._next_batch, None))  # a batch is not held while the next one is fetched

    def _next_batch(self) -> FetchedBatch | None:
        while True:
            batch = self._queued()
            if batch is not None or self._fetcher.is_finished:
                return batch
            now = time.monotonic()
            request = self._fetcher.request(now)
            if request is None:
                time.sleep(self._pause_seconds(now))
                continue
            # One at a time: reading ahead gains nothing here.
            alone = structs.replace(request, partitions=request.partitions[:1])
            result, data = self._fetch(alone.partitions[0])
            self._fetcher.take(messages.FetchReply([result]), data, alone, self._fetcher.generations(), now)

    def _fetch(self, wanted: messages.FetchPartition) -> tuple[messages.FetchResult, memoryview]:
        """The answer of the files to one partition of a fetch, as the broker's would be."""
        files = self._partition(wanted.topic, wanted.partition)
        assert wanted.offset is not None
        data, error = memoryview(b""), None
        aborted: list[Aborted] = []
        try:
            if self.options.isolation == READ_COMMITTED:
                data, aborted = self._decided(files, wanted)
            else:
                data = files.read(wanted.offset, wanted.max_bytes, verify=wanted.verify is True)
        except errors.SeglogError as found:
            error = found
        # Read after the bytes: compaction records its work before it removes anything.
        holes = files.holes()
        first = parse_header(data).base_offset if data else wanted.offset if error else OFFSET_MAX
        result = messages.FetchResult(
            self.topic,
            wanted.partition,
            size=len(data),
            offset=wanted.offset,
            gaps=[
                gap
                for gap in holes.known
                # Damaged bytes that still exist are an error when they are reached, not a gap.
                if gap.end > wanted.offset and (gap.reason == "missing" or gap.start < first)
            ],
            compacted_before=holes.compacted_before,
            aborted=[list(each) for each in aborted],
            error=error,
        )
        return result, data

    def _decided(self, files: PartitionFiles, wanted: messages.FetchPartition) -> tuple[memoryview, list[Aborted]]:
        """As ``PartitionFiles.read``, with the aborted transactions of those batches.

        They are looked up before the bytes are read: compaction removes them from both.
        """
        assert wanted.offset is not None
        at = wanted.offset
        while True:
            start, end, aborted = self._aborted.get(wanted.partition, (0, 0, []))
            if not start <= at < end:
                aborted, end = files.aborted(at)
                self._aborted[wanted.partition] = at, end, aborted
            data = files.read(wanted.offset, wanted.max_bytes, verify=wanted.verify is True)
            size = sum(len(batch) for header, batch in iter_batches(data) if header.base_offset < end)
            if size or not data:
                return data[:size], aborted
            at = parse_header(data).base_offset  # behind a hole that reaches into another segment

    def _answer(self, question: Ask) -> Reply:
        """The reply to an OffsetsRequest."""
        request = question.request
        assert isinstance(request, messages.OffsetsRequest)
        found = [
            offsets_in(self._partition(wanted.topic, number), wanted, request.isolation)
            for wanted in request.partitions
            for there in [self._directory.partitions(wanted.topic)]
            for number in (there if wanted.partition is None else [wanted.partition])
        ]
        return Reply(0, messages.OffsetsReply(found).to_wire(), memoryview(b""))

    def _partition(self, topic: str, number: int) -> PartitionFiles:
        if number not in self._files:
            self._files[number] = self._directory.partition(topic, number)
        return self._files[number]

    def close(self) -> None:
        """Close the files. Idempotent."""
        self._is_closed = True
        for files in self._files.values():
            files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def offsets_in(
    files: PartitionFiles, wanted: messages.OffsetsPartition, isolation: str | None
) -> messages.OffsetsResult:
    """What a broker would answer about the offsets of a partition."""
    ends = files.ends()
    stable = files.stable_end(ends) if isolation == READ_COMMITTED else None
    offset = None if wanted.timestamp is None else files.find_time(wanted.timestamp)
    if offset is not None and stable is not None and offset >= stable:
        offset = None
    return messages.OffsetsResult(
        files.topic,
        files.partition,
        earliest=ends.earliest,
        latest=ends.latest,
        durable=ends.durable,
        offset=offset,
        timestamp=wanted.timestamp,
        last_stable_offset=stable,
    )


_NO_TOPICS: Final = frozenset({"__cluster_metadata"})
"""Kafka's internal directories that look like a topic's."""


class LogDirectory:
    """A broker's log directory, on this machine or on shared storage.

    Raises LogDirectoryError when the directory does not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        if not self.path.is_dir():
            raise errors.LogDirectoryError(f"{self.path} is not a directory on this machine", path=str(self.path))

    def topics(self) -> dict[str, list[int]]:
        """Topics by name, each with its partitions in this directory, ascending."""
        found: dict[str, list[int]] = {}
        for entry in os.scandir(self.path):
            topic, _, number = entry.name.rpartition("-")  # deleted topics end in a word, not in a number
            if topic == ".Trash" and not (Path(entry) / "partition.metadata").exists():
                continue  # a desktop's
            if topic and topic not in _NO_TOPICS and number.isascii() and number.isdecimal() and entry.is_dir():
                found.setdefault(topic, []).append(int(number))
        return {topic: sorted(found[topic]) for topic in sorted(found)}

    def partitions(self, topic: str) -> list[int]:
        """The partitions of a topic in this directory. Raises UnknownTopicError, with the most similar name."""
        topics = self.topics()
        if topic not in topics:
            nearest = next(iter(get_close_matches(topic, topics, 1)), "")
            hint = f"; did you mean {nearest!r}?" if nearest else ""
            raise errors.UnknownTopicError(f"no topic {topic!r} in {self.path}{hint}", topic=topic, nearest=nearest)
        return topics[topic]

    def partition(self, topic: str, number: int) -> PartitionFiles:
        """One partition; its methods raise if it does not exist."""
        return PartitionFiles(self.path, topic, number)

    def consumer(self, topic: str, **options: Any) -> "DirectoryConsumer":
        """As ``Client.consumer`` without a group and ``follow``. ``durable_only``: up to the recovery point on disk."""
        return DirectoryConsumer(self, topic, ConsumerOptions(**options))
