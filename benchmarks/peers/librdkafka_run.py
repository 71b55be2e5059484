"""What librdkafka produces and consumes in so many seconds, as JSON. Run by a Python that has confluent-kafka."""

import importlib
import json
import sys
import time
from typing import Any, Final

_VALUE: Final = b"x" * 100
_TIMEOUT: Final = 60


def main(port: int, topic: str, count: int) -> dict[str, float]:
    """Seconds until ``count`` records of 100 bytes were acknowledged with acks=1, and until all were consumed."""
    kafka: Any = importlib.import_module("confluent_kafka")
    servers = {"bootstrap.servers": f"127.0.0.1:{port}"}
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
    produced = time.perf_counter() - began
    consumer = kafka.Consumer(servers | {"group.id": "none", "enable.auto.commit": False})
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
    return {"produce": produced, "consume": consumed}


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))))
