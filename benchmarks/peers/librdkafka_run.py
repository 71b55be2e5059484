"""How many seconds librdkafka takes for records, transactions or jobs. Run by a Python that has confluent-kafka."""

import importlib
import sys
import time
from typing import Any, Final

_VALUE: Final = b"x" * 100
_TIMEOUT: Final = 60


def produce(kafka: Any, servers: dict[str, Any], topic: str, count: int) -> float:
    """Seconds until ``count`` records of 100 bytes were acknowledged with acks=1."""
    producer = kafka.Producer(servers | {"acks": 1, "linger.ms": 5, "queue.buffering.max.messages": 200_000})
    began = time.perf_counter()
    for _ in range(count):
        while True:
            try:
                producer.produce(topic, _VALUE, partition=0)
            except BufferError:
                producer.poll(0.1)
            else:
                break
    if producer.flush(_TIMEOUT):
        raise SystemExit(f"not all of {count} records were acknowledged")
    return time.perf_counter() - began


def consume(kafka: Any, servers: dict[str, Any], topic: str, count: int) -> float:
    """Seconds until all were consumed.

    With more records queued than ``queued.min.messages`` librdkafka fetches nothing for a second: that second would be
    measured where the broker is ahead of the program.
    """
    settings = {"group.id": "none", "enable.auto.commit": False, "queued.min.messages": count}
    consumer = kafka.Consumer(servers | settings)
    consumer.assign([kafka.TopicPartition(topic, 0, 0)])
    began = time.perf_counter()
    found = 0
    while found < count:
        messages = consumer.consume(min(10_000, count - found), timeout=_TIMEOUT)
        errors = [message.error() for message in messages if message.error() is not None]
        # It asks for the coordinator of its group, although its partitions are assigned: a broker may have none.
        if not messages or any(error.code() != kafka.KafkaError.GROUP_AUTHORIZATION_FAILED for error in errors):
            raise SystemExit(f"{found} of {count} records came back; {errors}")
        found += len(messages) - len(errors)
    consumed = time.perf_counter() - began
    consumer.close()
    return consumed


def transact(kafka: Any, servers: dict[str, Any], topic: str, count: int) -> float:
    """Seconds until ``count`` transactions of one record of 100 bytes were committed, one after the other."""
    producer = kafka.Producer(servers | {"transactional.id": "bench-librdkafka", "linger.ms": 0})
    producer.init_transactions(_TIMEOUT)
    began = time.perf_counter()
    for _ in range(count):
        producer.begin_transaction()
        producer.produce(topic, _VALUE, partition=0)
        producer.commit_transaction(_TIMEOUT)
    return time.perf_counter() - began


def work(kafka: Any, servers: dict[str, Any], topic: str, count: int) -> float:
    """Seconds from the first jobs until all were accepted, each poll's by the next one."""
    worker = kafka.ShareConsumer(servers | {"group.id": topic})
    worker.subscribe([topic])
    found = first = len(worker.poll(_TIMEOUT))
    began = time.perf_counter()
    while found < count and (jobs := len(worker.poll(_TIMEOUT))):
        found += jobs
    worker.commit_sync()
    if found < count:
        raise SystemExit(f"{found} of {count} jobs came")
    seconds = time.perf_counter() - began
    worker.close()
    return seconds * count / (count - first)


def main(step: str, port: str, topic: str, count: str) -> None:
    """Print the seconds."""
    kafka: Any = importlib.import_module("confluent_kafka")
    servers = {"bootstrap.servers": f"127.0.0.1:{port}"}
    steps = {"produce": produce, "consume": consume, "transactions, disk": transact, "jobs, disk": work}
    print(steps[step](kafka, servers, topic, int(count)))


if __name__ == "__main__":
    main(*sys.argv[1:])
