"""Two daemons for a mirror between them, records of every kind, and what is in a partition in the end."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.processes import Daemon, clean_environment, kafka_daemon

BASE_TIME: Final = 1_700_000_000_000
SECONDS_MAX: Final = 120


class Sides(NamedTuple):
    """The broker that is mirrored, and the other one."""

    source: Daemon
    target: Daemon


@contextmanager
def sides(folder: Path) -> Iterator[Sides]:
    with kafka_daemon(folder / "source") as source, kafka_daemon(folder / "target") as target:
        yield Sides(source, target)


def kafka_of(daemon: Daemon) -> str:
    """The address for Kafka's clients."""
    return f"127.0.0.1:{daemon.kafka_port}"


def mirror_command(both: Sides, *arguments: str) -> list[str]:
    command = [sys.executable, "-m", "seglog", "mirror", "--server", both.source.address]
    return [*command, "--to", f"kafka://{kafka_of(both.target)}", *arguments]


def mirror(both: Sides, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """A mirror that ends by itself."""
    return completed(mirror_command(both, *arguments))


def completed(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, env=clean_environment(), capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )


def started(command: Sequence[str], errors: Path) -> "subprocess.Popen[bytes]":
    with errors.open("ab") as file:
        return subprocess.Popen(command, env=clean_environment(), stdout=file, stderr=file)


def produce(address: str, topic: str, records: Sequence[dict[str, Any]], **settings: Any) -> None:
    """Keywords of ``Producer.produce``, in order."""
    quiet = {"log_level": 0, "queue.buffering.max.messages": 2_000_000}
    producer = Producer({"bootstrap.servers": address, "linger.ms": 5, **quiet, **settings})
    for record in records:
        producer.produce(topic, **record)
    assert producer.flush(60) == 0


def numbered(first: int, count: int, partitions: int = 1, size: int = 20) -> list[dict[str, Any]]:
    """Records that differ, spread over partitions."""
    return [
        {
            "value": b"%d " % number + b"v" * size,
            "key": b"k%d" % (number % 1000),
            "partition": number % partitions,
            "timestamp": BASE_TIME + number,
            "headers": [("number", b"%d" % number)],
        }
        for number in range(first, first + count)
    ]


def contents(
    address: str, topic: str, partition: int = 0, isolation: str = "read_uncommitted", **account: Any
) -> list[Any]:
    """Offset, key, value, headers and timestamp of every record."""
    settings = {"group.id": "looks", "enable.partition.eof": True, "auto.offset.reset": "earliest", "log_level": 0}
    consumer = Consumer(
        {"bootstrap.servers": address, "enable.auto.commit": False, "isolation.level": isolation, **settings, **account}
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    found = []
    while True:
        for each in consumer.consume(10_000, 1):
            if each.error() is None:
                found.append((each.offset(), each.key(), each.value(), each.headers(), each.timestamp()))
            elif each.error().code() == KafkaError._PARTITION_EOF:
                consumer.close()
                return found
            else:
                raise AssertionError(each.error())


def end_of(address: str, topic: str, partition: int = 0) -> int:
    """Where the partition ends; 0 while it is not there, or does not answer."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "looks", "log_level": 0})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, partition), 5)[1])
    except KafkaException:
        return 0
    finally:
        consumer.close()


def committed(address: str, group: str, topic: str, partition: int = 0) -> tuple[int, str]:
    """A group's offset, and its metadata."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": group, "log_level": 0})
    (found,) = consumer.committed([TopicPartition(topic, partition)], 10)
    consumer.close()
    return found.offset, found.metadata or ""


def commit(address: str, group: str, topic: str, offset: int, metadata: str = "", partition: int = 0) -> None:
    consumer = Consumer({"bootstrap.servers": address, "group.id": group, "log_level": 0})
    consumer.commit(offsets=[TopicPartition(topic, partition, offset, metadata)], asynchronous=False)
    consumer.close()
