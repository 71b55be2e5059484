"""Copies queue ``in`` to queue ``out`` with kombu, or fills ``in``.

Arguments: the server, and how many numbers to fill it with; without that, it copies.
"""

import sys

from kombu import Connection, Message, Producer, Queue

server, *counts = sys.argv[1:]
connection = Connection(
    f"confluentkafka://{server}",
    transport_options={
        "kafka_consumer_config": {"group.id": "copiers", "session.timeout.ms": 6000},
        "kafka_producer_config": {"message.timeout.ms": 0},  # by default it is lost after 5 minutes, without an error
    },
)


def fill(producer: Producer, count: int) -> None:
    """Send so many numbers."""
    for number in range(count):
        producer.publish(number, routing_key="in", retry=True)


def copy_all(producer: Producer) -> None:
    """Copy until killed."""

    def copy(body: int, message: Message) -> None:
        producer.publish(body, routing_key="out", retry=True)
        message.ack()

    # An acknowledgement commits all that was received: so one message at a time.
    with connection.Consumer(Queue("in"), callbacks=[copy], prefetch_count=1):
        while True:
            connection.drain_events()


if __name__ == "__main__":
    with connection, connection.Producer() as sending:
        if counts:
            fill(sending, int(counts[0]))
        else:
            copy_all(sending)
