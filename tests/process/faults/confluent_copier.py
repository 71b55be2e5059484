"""Copies topic ``in`` to ``out`` exactly once, with confluent-kafka: a transaction for each few records.

A process of its own: ``python confluent_copier.py BOOTSTRAP TRANSACTIONAL_ID BATCH``. It ends when the broker has
aborted or fenced it: whoever runs it starts it again.
"""

import sys
import time
from collections.abc import Callable
from functools import partial

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

# By default librdkafka 2.16 forgets the only node when it is away, and then waits for it for ever in a transaction.
REMEMBERS_NODE = {"metadata.recovery.strategy": "none"}

bootstrap, transactional_id, batch = sys.argv[1], sys.argv[2], int(sys.argv[3])
SECONDS = 30


def main() -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "copiers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "session.timeout.ms": 6_000,
            **REMEMBERS_NODE,
        }
    )
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 20_000,
            **REMEMBERS_NODE,
        }
    )
    producer.init_transactions(SECONDS)
    consumer.subscribe(["in"])
    while True:
        messages = [message for message in consumer.consume(batch, 0.5) if message.error() is None]
        if not messages:
            continue
        producer.begin_transaction()
        for message in messages:
            producer.produce("out", message.value(), message.key(), partition=message.partition())
        positions = [each for each in consumer.position(consumer.assignment()) if each.offset >= 0]
        metadata = consumer.consumer_group_metadata()
        try:
            retried(partial(producer.send_offsets_to_transaction, positions, metadata, SECONDS))
            retried(lambda: producer.commit_transaction(SECONDS))
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            retried(lambda: producer.abort_transaction(SECONDS))
            rewind(consumer)


def retried(call: Callable[[], object]) -> None:
    """Do it again while it may help."""
    for _ in range(100):
        try:
            call()
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
            time.sleep(0.1)
        else:
            return
    raise SystemExit("no answer")


def rewind(consumer: Consumer) -> None:
    """Go back to what is committed."""
    for place in consumer.committed(consumer.assignment(), SECONDS):
        try:
            consumer.seek(TopicPartition(place.topic, place.partition, max(0, place.offset)))
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE:
                raise


if __name__ == "__main__":
    try:
        main()
    except KafkaException as error:
        print(error, file=sys.stderr, flush=True)
        raise SystemExit(1) from None
