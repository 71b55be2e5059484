"""Compaction of the same records by seglog's cleaner and by Apache Kafka's, each with one worker.

Records of 210 bytes, a tenth of them with a key of their own, in batches of 16 KiB, four closed segments of 128 MiB.
seglog cleans them in this process, as ``benchmarks.compaction`` does; Kafka says in its log how long it took.
"""

import random
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

from benchmarks.batches import FIRST_TIMESTAMP
from benchmarks.compaction import Log, clean_once
from benchmarks.harness import MB, MIB, Bench, BenchmarkError
from benchmarks.peers.kafka_connection import connect_kafka
from benchmarks.peers.results import Measure
from benchmarks.peers.servers import PeerServer
from seglog_protocol.batch_builder import encode_batch
from seglog_protocol.segment_files import LOG_SUFFIX, segment_file_name

_RECORD_BYTES: Final = 210
_VALUE_BYTES: Final = 183
_RECORDS_A_BATCH: Final = 78
"""The largest number of such records in a batch of at most 16 KiB."""

_DISTINCT_SHARE: Final = 0.1
_SEGMENTS: Final = 4
_CLEANING_SECONDS_MAX: Final = 120
_TOPIC: Final = "bench-peers-compacted"
_POLL_SECONDS: Final = 0.1


class Records:
    """The batches of closed segments, and one more that closes the last of them."""

    def __init__(self, segment_bytes: int) -> None:
        self.segment_bytes = segment_bytes
        self.batches: list[bytes] = []
        """With base offset 0, as Kafka wants them from a producer."""
        self.bases: list[int] = []
        """Base offset of each closed segment."""
        self.sizes: list[int] = []
        """Bytes of each closed segment."""
        source = random.Random(7)
        words = [b"%08x" % source.getrandbits(32) for _ in range(1000)]
        values = [b" ".join(source.choices(words, k=21))[:_VALUE_BYTES] for _ in range(1000)]
        keys = int(_SEGMENTS * segment_bytes / _RECORD_BYTES * _DISTINCT_SHARE)
        size, base = 0, 0
        self.bases.append(0)
        for offset in count(0, _RECORDS_A_BATCH):
            rows = [
                (FIRST_TIMESTAMP + offset + number, b"key-%012d" % source.randrange(keys), source.choice(values), ())
                for number in range(_RECORDS_A_BATCH)
            ]
            batch = encode_batch(rows)
            self.batches.append(batch)
            if size + len(batch) > segment_bytes:
                self.sizes.append(size)
                base, size = offset, 0
                if len(self.sizes) == _SEGMENTS:
                    break
                self.bases.append(base)
            size += len(batch)
        self.end = base
        """Of the closed segments."""

    def write(self, directory: Path) -> Log:
        """The closed segments as files, with an empty one behind them."""
        batches = zip(count(0, _RECORDS_A_BATCH), self.batches, strict=False)
        for base, size in zip(self.bases, self.sizes, strict=True):
            with (directory / segment_file_name(base, LOG_SUFFIX)).open("wb") as file:
                while file.tell() < size:
                    offset, batch = next(batches)
                    file.write(offset.to_bytes(8, "big") + batch[8:])
        (directory / segment_file_name(self.end, LOG_SUFFIX)).touch()
        return Log(directory, self.bases, self.end, sum(self.sizes))


@contextmanager
def cleaners(bench: Bench, kafka: PeerServer | None) -> Iterator[tuple["Ours", "KafkasCleaner | None"]]:
    """Both sides, with the same records."""
    records = Records(bench.pick(128, 2) * MIB)
    with bench.fresh_directory() as directory:
        yield Ours(records.write(directory)), None if kafka is None else KafkasCleaner(kafka, records)


class Ours:
    """One round of compaction in this process."""

    def __init__(self, log: Log) -> None:
        self._log = log
        clean_once(log)  # so that the files are in the page cache, and the code is warm

    def clean(self) -> Measure:
        """In MB/s."""
        return Measure(self._log.size / MB / clean_once(self._log).seconds)


class KafkasCleaner:
    """A new topic a round, filled while its policy is ``delete``; then that turns to ``compact``."""

    def __init__(self, server: PeerServer, records: Records) -> None:
        self._server = server
        self._records = records
        self._names = map(partial("{}-{}".format, _TOPIC), count())
        self.clean()

    def clean(self) -> Measure:
        """In MB/s, as Kafka's log says."""
        topic = next(self._names)
        with connect_kafka(self._server.port) as kafka:
            kafka.create_topic(topic, segment_bytes=self._records.segment_bytes, cleanup_policy="delete")
            kafka.fill(topic, self._records.batches)
            kafka.alter_topic(topic, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.001"})
            ends = time.monotonic() + _CLEANING_SECONDS_MAX
            while (found := cleaned_in_log(self._server.log(), topic)) is None:
                if time.monotonic() > ends:
                    raise BenchmarkError(f"Kafka did not compact {topic} within {_CLEANING_SECONDS_MAX} s")
                time.sleep(_POLL_SECONDS)
            kafka.delete_topic(topic)
        end, mib_per_second = found
        if end != self._records.end:
            raise BenchmarkError(f"Kafka compacted {topic} up to {end}, not up to {self._records.end}")
        return Measure(mib_per_second * MIB / MB)


def cleaned_in_log(log: str, topic: str) -> tuple[int, float] | None:
    """What Kafka's log says of the first compaction of partition 0: end of the dirty part, MiB/s; None if nothing."""
    found = re.search(
        rf"cleaned log {re.escape(topic)}-0 \(dirty section = \[\d+, (\d+)\]\)\s+"
        r"[\d.,]+ MB of log processed in [\d.,]+ seconds \(([\d.,]+) MB/sec\)",
        log,
    )
    return None if found is None else (int(found[1]), float(found[2].replace(",", "")))
