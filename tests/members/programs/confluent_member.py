"""A member with confluent-kafka, librdkafka."""

import logging
import re
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.members.programs.telling import HEARTBEAT_SECONDS, SESSION_SECONDS, Teller

JOINED: Final = re.compile(r"JoinGroup response: GenerationId (\d+)")


class Generations(logging.Handler):
    """The newest generation, which librdkafka tells in its log alone; the log comes by ``poll``, as callbacks do."""

    newest: int | None = None

    def emit(self, record: logging.LogRecord) -> None:
        found = JOINED.search(record.getMessage())
        if found:
            self.newest = int(found[1])


def main() -> None:
    teller = Teller()
    generations = Generations()
    logger = logging.getLogger("librdkafka")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(generations)
    settings = {
        "bootstrap.servers": teller.server,
        "group.id": teller.group,
        "client.id": teller.who,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "partition.assignment.strategy": "range",
        "session.timeout.ms": int(SESSION_SECONDS * 1000),
        "heartbeat.interval.ms": int(HEARTBEAT_SECONDS * 1000),
        "debug": "cgrp",
    }
    consumer = Consumer(settings, logger=logger)

    def assigned(_: Consumer, places: list[TopicPartition]) -> None:
        teller.assigned(consumer.memberid(), generations.newest, [place.partition for place in places])

    consumer.subscribe([teller.topic], on_assign=assigned, on_revoke=teller.revoked, on_lost=teller.revoked)
    count = 0
    while True:
        record = consumer.poll(0.2)
        if record is not None and record.error() is None:
            teller.handled(record.partition(), record.offset())
            count += 1
        if teller.uncommitted and (record is None or teller.is_commit_due(count)):
            count = 0
            with teller.committing(KafkaException) as offsets:
                places = [TopicPartition(teller.topic, at, to) for at, to in offsets.items()]
                for place in consumer.commit(offsets=places, asynchronous=False):
                    if place.error is not None:
                        raise KafkaException(place.error)


if __name__ == "__main__":
    main()
