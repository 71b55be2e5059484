"""What Python's clients of Kafka do beside any broker: ``python -m tests.interop.client_habits NAME [HOST:PORT]``.

A habit says in a line what it has seen, with a topic that is new; a daemon is started where no broker is given.
"""

import asyncio
import logging
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, Producer, ShareConsumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.aio import AIOProducer
from kafka import KafkaProducer
from kafka.errors import KafkaTimeoutError

from tests.processes import Daemon, free_port, kafka_daemon


def _to(server: str, **more: Any) -> dict[str, Any]:
    return {"bootstrap.servers": server, "log_level": 0} | {key.replace("_", "."): value for key, value in more.items()}


def _sent(server: str, topic: str, *, acks: str = "all", **record: Any) -> Message:
    reports: list[Message] = []
    producer = Producer(_to(server, acks=acks))
    producer.produce(topic, on_delivery=lambda _, message: reports.append(message), **record)
    producer.flush(30)
    return reports[0]


def _made(server: str, topic: str, partitions: int, size: str) -> None:
    admin = AdminClient(_to(server))  # dropped before its answer is there it fails
    admin.create_topics([NewTopic(topic, partitions, 1, config={"max.message.bytes": size})])[topic].result(30)


def _count(server: str, topic: str) -> int:
    return int(Consumer(_to(server, group_id=topic)).get_watermark_offsets(TopicPartition(topic, 0), timeout=30)[1])


def awaited_record(server: str, topic: str) -> str:
    async def seconds(buffer_timeout: float) -> float:
        producer = AIOProducer(_to(server), buffer_timeout=buffer_timeout)
        await (await producer.produce(topic, b"it also connects"))
        began = time.monotonic()
        await (await producer.produce(topic, b"x"))
        waited = time.monotonic() - began
        await producer.close()
        return waited

    return f"buffer_timeout=1: {asyncio.run(seconds(1)):.1f} s; buffer_timeout=0.01: {asyncio.run(seconds(0.01)):.1f} s"


def late_abort(server: str, topic: str) -> str:
    producer = Producer(_to(server, transactional_id=topic, transaction_timeout_ms=1000, message_timeout_ms=1000))
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"x")
    producer.flush(30)
    time.sleep(22)  # a broker looks each 10 s for transactions whose time is over
    try:
        producer.abort_transaction(30)
    except KafkaException as error:
        return f"abort_transaction raises {error.args[0].name()}, fatal: {error.args[0].fatal()}"
    return "abort_transaction succeeds"


def share_consumer(server: str, topic: str) -> str:
    _sent(server, topic, value=b"x")
    consumer = ShareConsumer(_to(server, group_id=topic))
    consumer.subscribe([topic])
    return (
        f"of a topic with a record 10 polls of 1 s give {sum(len(consumer.poll(1)) for _ in range(10))}, and no error"
    )


def unflushed(server: str, topic: str) -> str:
    _made(server, topic, 1, "1000")
    program = f"from confluent_kafka import Producer; Producer({_to(server)}).produce({topic!r}, b'x')"
    code = subprocess.run([sys.executable, "-c", program], check=False).returncode
    return f"produce without flush: exit code {code}, records in the log: {_count(server, topic)}"


def unanswered_ack(server: str, topic: str) -> str:
    _made(server, topic, 1, "1000")
    error = _sent(server, topic, acks="0", value=bytes(5000)).error()
    return f"acks=0, a record above max.message.bytes: error {error}, records in the log: {_count(server, topic)}"


def other_partitions(server: str, topic: str) -> str:
    _made(server, topic, 10, "1000")
    as_java, keys = KafkaProducer(bootstrap_servers=server), [b"%d" % number for number in range(20)]
    same = sum(
        _sent(server, topic, key=key).partition() == as_java.send(topic, key=key).get(30).partition for key in keys
    )
    return f"{same} of {len(keys)} keys go to the same partition as kafka-python's"


def error_as_value(server: str, topic: str) -> str:
    consumer = Consumer(_to(server, group_id=topic))
    consumer.subscribe([topic])
    message = consumer.poll(30)
    return f"error {message.error().name()}, value {message.value()!r}"


def late_port(_: str, topic: str) -> str:
    port = free_port()
    with TemporaryDirectory() as folder:
        running = Daemon(Path(folder) / topic, "--set", f"listeners=PLAINTEXT://127.0.0.1:{port}")
        timer = Timer(10, running.start)
        timer.start()
        try:
            seen = repr(KafkaProducer(bootstrap_servers=f"127.0.0.1:{port}"))
        except KafkaTimeoutError as error:
            seen = f"{error} in 30 s"
        timer.join()
        running.kill()
    return f"the broker begins to start after 10 s: {seen}"


if __name__ == "__main__":
    logging.disable()
    habit, topic = globals()[sys.argv[1].replace("-", "_")], f"habit-{time.time_ns()}"
    if len(sys.argv) > 2:
        print(habit(sys.argv[2], topic))
    else:
        with TemporaryDirectory() as folder, kafka_daemon(Path(folder) / "data") as running:
            print(habit(f"127.0.0.1:{running.kafka_port}", topic))
